"""How many floating-point operations training needs, to be held against what the machine can do."""

from __future__ import annotations

import math

from tunesmith.models.catalog import ModelConfig
from tunesmith.models.weights import parameter_specs
from tunesmith.recipe.schema import LoraSection


def training_flops(
    config: ModelConfig, lora: LoraSection | None, tokens: int, target_tokens: int
) -> int:
    """Operations that these tokens need: forward, backward and the gradients that are wanted.

    A weight costs a token one multiplication and one addition forward, as much again for the
    gradient of its input, and as much again for its own gradient if it trains: 6 operations, or 4
    where it is frozen (Kaplan et al., 2020, section 2.1). So

        full: 6 · backbone · tokens + 6 · head · target tokens
        LoRA: (4 · backbone + 6 · adapters) · tokens + 4 · head · target tokens

    with the matrices of the layers as the backbone and vocabulary × hidden size as the head, which
    is needed where there is a loss and nowhere else. Left out are attention scores (5 % of it for
    Gemma 3 270M at 256 tokens), norms and the optimizer, and whatever a program does in vain:
    padding, logits nobody asked for, activations computed twice.

    Args:
        config: the model's shape.
        lora: the adapters; None with full fine-tuning.
        tokens: without padding.
        target_tokens: those with a loss among them.
    """
    specs = parameter_specs(config)
    head = math.prod(specs.pop("embed").shape)
    matrices = [spec for spec in specs.values() if len(spec.shape) == 2]
    backbone = sum(math.prod(matrix.shape) for matrix in matrices)
    if lora is None:
        return 6 * backbone * tokens + 6 * head * target_tokens
    endings = tuple(f".{target}.weight" for target in lora.targets)
    adapters = sum(lora.r * sum(m.shape) for m in matrices if m.hf_key.endswith(endings))
    return (4 * backbone + 6 * adapters) * tokens + 4 * head * target_tokens
