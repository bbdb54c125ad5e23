"""From a model directory to a module that trains: the text decoder alone, adapters, the head."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from trl.trainer.utils import add_fused_lm_head

from tunesmith.engines.hf.families import Family, has_experts
from tunesmith.engines.lora_start import draw_a
from tunesmith.errors import UserError
from tunesmith.models.adapter import Adapter
from tunesmith.models.catalog import TEXT_PREFIX, WEIGHT_PREFIXES, weight_prefix
from tunesmith.models.tensor_files import TensorFiles
from tunesmith.models.weights import refuse_own_head
from tunesmith.recipe.schema import LoraSection, TrainSection

ADAPTER = "default"  # PEFT's name of the only adapter
_TOWERS = (
    "vision_tower.",
    "audio_tower.",
    "multi_modal_projector.",
    "embed_vision.",
    "embed_audio.",
)


def load_text_model(
    model_dir: Path,
    family: Family,
    text_config: Any,
    *,
    dtype: torch.dtype,
    attention: str = "sdpa",
    quantization: Any = None,
    device: torch.device | None = None,
) -> nn.Module:
    """The text decoder with its head, from a text or a multimodal checkpoint.

    Under FSDP only the first process of a node reads weights; those of the others are empty until
    they are sharded (transformers' `cpu_ram_efficient_loading`).

    Args:
        model_dir: Hugging Face directory.
        family, text_config: from `families.find_family`.
        dtype: of the weights in memory.
        attention: transformers' name of the attention.
        quantization: transformers' quantization config, if any.
        device: where each tensor goes as it is read; None: the host.

    Raises:
        UserError: tensors are missing, unexpected, or of another shape.
    """
    files = TensorFiles(model_dir)  # says more plainly than transformers what is damaged
    prefix = weight_prefix(files, model_dir / "config.json")
    refuse_own_head(files, f"{prefix}embed_tokens.weight")
    # What precedes `layers.0…` in multimodal checkpoints, as published and as transformers 5 saves.
    renames = {f"^{prefix}": TEXT_PREFIX for prefix in WEIGHT_PREFIXES if prefix != TEXT_PREFIX}
    try:
        answer: Any = getattr(transformers, family.causal_lm).from_pretrained(
            model_dir,
            config=text_config,
            dtype=dtype,
            attn_implementation=attention,
            key_mapping={pattern.replace(".", r"\."): to for pattern, to in renames.items()},
            quantization_config=quantization,
            device_map=None if device is None else {"": device},
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # told below, with names
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{model_dir}: the weights cannot be loaded: {str(error).strip()[:500]}",
            "The files are damaged or of another model; get them again.",
        ) from error
    model, info = answer
    unexpected = [key for key in info["unexpected_keys"] if not _is_tower(key)]
    for kind, keys in (("missing", info["missing_keys"]), ("unexpected", unexpected)):
        if keys:
            raise UserError(
                f"{model_dir}: the weights do not fit config.json; {kind}: "
                + ", ".join(sorted(map(str, keys))[:5])
            )
    if wrong := sorted(info["mismatched_keys"]):
        listed = ", ".join(f"{k} is {list(have)}, not {list(want)}" for k, have, want in wrong[:5])
        raise UserError(
            f"{model_dir}: the weights do not fit config.json; {listed}",
            "Use the weights with their own config.json.",
        )
    add_fused_lm_head(model)
    return model


def _is_tower(key: str) -> bool:
    return key.removeprefix("model.").startswith(_TOWERS) or key.endswith("lm_head.weight")


def check_lora(lora: LoraSection, family: Family, text_config: Any) -> None:
    """See that adapters mean what they seem to mean.

    Raises:
        UserError: the model has experts, and the recipe does not say what becomes of them.
    """
    if has_experts(text_config) and lora.experts is None:
        raise UserError(
            f"lora: this {family.name} model has {text_config.num_experts} experts in each layer, "
            "whose weights are stacked tensors: adapters by the names of projections miss them",
            "Say `lora.experts: frozen` to train the projections beside them alone, or use "
            "`train.method: full`.",
        )


def attach_lora(model: nn.Module, lora: LoraSection, *, seed: int) -> list[str]:
    """Freeze the model and put fresh float32 adapters into it, in place.

    Returns:
        Paths of the adapted modules, e.g. `model.layers.0.self_attn.q_proj`.

    Raises:
        UserError: a target is in none of the layers.
    """
    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias="none",
        task_type="CAUSAL_LM",
        # B starts at zero; A is drawn below, the same for every engine.
        init_lora_weights=False,
    )
    inject_adapter_in_model(settings, model, ADAPTER)
    by_target = defaultdict(list)
    for path, layer in lora_layers(model):
        by_target[path.rpartition(".")[2]].append(layer)
    absent = [target for target in lora.targets if target not in by_target]
    if absent:
        raise UserError(f"lora.targets: the model has no {', '.join(absent)}")
    shapes = {
        target: [(lora.r, layer.in_features) for layer in layers]
        for target, layers in by_target.items()
    }
    for target, matrices in draw_a(shapes, seed).items():
        for layer, a in zip(by_target[target], matrices, strict=True):
            _start(layer, torch.from_numpy(a))
    return [path for path, _ in lora_layers(model)]


def _start(layer: LoraLayer, a: torch.Tensor) -> None:
    """Begin an adapter as float32 master weights: A as drawn, B zero."""
    linear: Any
    b = torch.zeros(int(layer.out_features or 0), a.shape[0])
    for linear, value in ((layer.lora_A[ADAPTER], a), (layer.lora_B[ADAPTER], b)):
        # The device is `meta` where another process reads the weights.
        linear.weight = nn.Parameter(value.to(linear.weight.device))


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """The adapted modules by their path, in the model's order."""
    for path, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield path, module


def recompute_layers(model: nn.Module) -> None:
    """Have each decoder layer's activations computed again in the backward pass."""
    model.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]


def merge_adapter(model: nn.Module, adapter: Adapter) -> None:
    """Add an adapter to a model's weights, in place.

    Raises:
        UserError: it does not fit the model.
    """
    for path, (a, b) in adapter.pairs.items():
        living = path.replace("model.language_model.", TEXT_PREFIX, 1)
        try:
            weight = model.get_parameter(f"{living}.weight")
            weight.data += adapter.scale * (torch.from_numpy(b) @ torch.from_numpy(a))
        except (AttributeError, RuntimeError) as error:
            raise UserError(
                f"the adapter does not fit the model at {path}",
                "Name the base model that the adapter was trained on.",
            ) from error


def quantization(lora: LoraSection | None, dtype: torch.dtype, device: torch.device) -> Any:
    """transformers' quantization config for `lora.quantize_base`, or None.

    Raises:
        UserError: it was asked for where it cannot be had.
    """
    if lora is None or lora.quantize_base is None:
        return None
    if device.type != "cuda":
        raise UserError(
            "lora.quantize_base: 4-bit weights need a CUDA device, for bitsandbytes multiplies "
            "them there; there is none",
            "Leave it out: the frozen weights are then held in train.compute_dtype.",
        )
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "lora.quantize_base needs the package bitsandbytes",
            "Install it with: pip install 'tunesmith[qlora]'",
        )
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=lora.quantize_base,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        # Stored as if of the compute type, so that FSDP can shard them with the rest.
        bnb_4bit_quant_storage=dtype,
    )


def share_buffers(model: nn.Module) -> None:
    """Give every process the buffers of the first one, before weights are sharded.

    Gemma 4 keeps a scale of each layer in a buffer of the checkpoint. Only one process of a node
    has read it, and Accelerate (1.15) hands out parameters alone: it stops at a buffer that is
    saved with the weights. So they are marked as not saved; exports take them from the base model.
    """
    values: list[Any] = [{name: buffer.cpu() for name, buffer in model.named_buffers()}]
    if not PartialState().is_local_main_process:
        values = [None]
    broadcast_object_list(values)
    for name, value in values[0].items():
        path, _, short = name.rpartition(".")
        module = model.get_submodule(path)
        delattr(module, short)
        module.register_buffer(short, value.clone(), persistent=False)


def make_optimizer(model: nn.Module, train: TrainSection, *, fused: bool) -> torch.optim.AdamW:
    """AdamW over what trains; its learning rate is set before each step.

    Args:
        model: its trained parameters are float32.
        train: the recipe's figures; weight decay is for matrices alone, as in the JAX engine.
        fused: one kernel for all parameters, on GPUs.
    """
    adam = train.optimizer
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": adam.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=(adam.beta1, adam.beta2),
        eps=adam.eps,
        fused=fused or None,
    )
