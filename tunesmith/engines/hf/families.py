"""What the engine has to know of each model family; one row each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.errors import UserError

# Flash attention 2 has kernels for heads of up to 256 (https://github.com/Dao-AILab/flash-attention).
_FLASH_2_HEAD = 256


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models as transformers has it.

    Attributes:
        name: for messages.
        causal_lm: class of the text decoder with its head; a multimodal checkpoint's towers are not
            part of it and so never loaded.
        decoder_layer: class that FSDP wraps and that activations are recomputed by.
        text_type: `model_type` of the text config.
    """

    name: str
    causal_lm: str
    decoder_layer: str
    text_type: str


GEMMA3 = Family("Gemma 3", "Gemma3ForCausalLM", "Gemma3DecoderLayer", "gemma3_text")
GEMMA4 = Family("Gemma 4", "Gemma4ForCausalLM", "Gemma4TextDecoderLayer", "gemma4_text")

# By the `model_type` of config.json: a text model's own, and that of the multimodal one around it.
FAMILIES = {
    "gemma3_text": GEMMA3,
    "gemma3": GEMMA3,
    "gemma4_text": GEMMA4,
    "gemma4": GEMMA4,
}


def find_family(model_dir: Path) -> tuple[Family, Any]:
    """The family of a model directory and its text config, as transformers reads it.

    Raises:
        UserError: config.json is missing, damaged or of another family.
    """
    from transformers import AutoConfig

    path = model_dir / "config.json"
    try:
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for damaged configs
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{path} cannot be read: {first}",
            "It must be the config.json of a Gemma 3 or Gemma 4 model.",
        ) from error
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UserError(
            f"{path}: model_type {config.model_type!r} is not supported",
            f"Supported are {', '.join(FAMILIES)}.",
        )
    return family, config.get_text_config()


def choose_attention(family: Family, text_config: Any, wanted: str) -> str:
    """transformers' name of the attention to use.

    Raises:
        UserError: flash attention 2 was asked for and cannot do the model's heads, or is missing.
    """
    if wanted == "auto":
        return "sdpa"
    if wanted == "flash_attention_2":
        largest = max(head_sizes(text_config))
        if largest > _FLASH_2_HEAD:
            raise UserError(
                f"train.attention: {family.name} has heads of {largest}, and flash attention 2 "
                f"stops at {_FLASH_2_HEAD}",
                "Leave it out, or use `train.attention: sdpa`.",
            )
        from transformers.utils.import_utils import is_flash_attn_2_available

        if not is_flash_attn_2_available():
            raise UserError(
                "train.attention: flash attention 2 needs the package flash-attn and a CUDA device",
                "Install it, or leave train.attention out.",
            )
    return wanted


def head_sizes(text_config: Any) -> set[int]:
    """Sizes of the attention heads: Gemma 4 has larger ones in its global layers."""
    layers = getattr(text_config, "per_layer_config", None) or [text_config]
    return {int(layer.head_dim) for layer in layers}


def check_length(text_config: Any, max_length: int) -> None:
    """See that sequences fit the model's positions.

    Raises:
        UserError: they do not.
    """
    positions = text_config.max_position_embeddings
    if max_length > positions:
        raise UserError(
            f"data.max_length {max_length} is above the model's {positions} positions",
            f"Set it to {positions} or less.",
        )


def has_experts(text_config: Any) -> bool:
    """Whether the model is a mixture of experts."""
    return bool(getattr(text_config, "enable_moe_block", False))
