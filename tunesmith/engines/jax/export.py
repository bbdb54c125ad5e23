"""From the trained tree back to a checkpoint's tensors, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from tunesmith.engines.jax.params import LORA_A, LORA_B, STACK, layer_names
from tunesmith.models.adapter import Adapter, merged_tensor, write_adapter
from tunesmith.models.catalog import ModelConfig
from tunesmith.models.weights import parameter_specs, read_weights, write_weights
from tunesmith.recipe.schema import LoraSection

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def write(
    out_dir: Path,
    model_dir: Path,
    config: ModelConfig,
    trained: Mapping[str, np.ndarray],
    lora: LoraSection | None,
    *,
    kind: str,
    dtype: str,
) -> None:
    """Write the weights of an export into an existing, empty directory.

    Args:
        out_dir: where to.
        model_dir: the base model, which gives the frozen weights, and a multimodal one's towers.
        config: the base model's shape.
        trained: float32 arrays by stacked name.
        lora: the adapters' figures if adapters were trained.
        kind: `merged` for a whole model, `adapter` for PEFT's format.
        dtype: `base`, `float32` or `bfloat16`; adapters are float32 always.
    """
    if kind == "adapter":
        assert lora is not None
        write_adapter(out_dir, config, unstack_adapter(config, trained, lora), lora, model_dir)
        return
    write_weights(out_dir, _tensors(model_dir, config, trained, lora, dtype))


def _tensors(
    model_dir: Path,
    config: ModelConfig,
    trained: Mapping[str, np.ndarray],
    lora: LoraSection | None,
    dtype: str,
) -> Iterator[tuple[str, np.ndarray]]:
    base = read_weights(model_dir, config, dtype="float32")
    adapter = unstack_adapter(config, trained, lora) if lora else Adapter({}, 0.0)
    for name, spec in parameter_specs(config).items():
        tensor = (
            merged_tensor(base[name], name, adapter) if lora else _layer_of(config, trained, name)
        )
        wanted = base.stored_dtype(name) if dtype == "base" else dtype
        yield spec.hf_key, tensor.astype(_DTYPES.get(wanted, np.dtype(wanted)), copy=False)
    yield from base.towers()


def _layer_of(config: ModelConfig, trained: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name in trained:
        return trained[name]
    _, layer, short = name.split(".", 2)
    return trained[STACK + short][int(layer)]


def unstack_adapter(
    config: ModelConfig, trained: Mapping[str, np.ndarray], lora: LoraSection
) -> Adapter:
    """Stacked adapter arrays as pairs by layer."""
    pairs = {}
    for name in trained:
        if name.endswith(LORA_A):
            stem = name.removesuffix(LORA_A)
            for i, layer in enumerate(layer_names(config, stem)):
                pairs[layer] = trained[name][i], trained[stem + LORA_B][i]
    return Adapter(pairs, lora.alpha / lora.r)
