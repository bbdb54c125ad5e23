"""What a model is: config.json → ModelConfig."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tunesmith.errors import UserError
from tunesmith.models.tensor_files import TensorFiles, read_json

LayerType = Literal["sliding", "full"]

# Architectures (config.json, `architectures`) and the model type that stands in where it is absent.
ARCHITECTURES = {
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
}

# What may stand before `layers.0.…` in a checkpoint's keys: text models; multimodal ones as
# published and as transformers saves them; multimodal ones by the module names of transformers 5.
TEXT_PREFIX = "model."
WEIGHT_PREFIXES = (TEXT_PREFIX, "language_model.model.", "model.language_model.")

# The published sizes, in config.json's terms: name, (hidden, ffn, layers, query heads, key-value
# heads, head_dim, window, query_pre_attn_scalar, vocabulary, linear RoPE factor, longest input).
_SIZES = {
    "270m": (640, 2048, 18, 4, 1, 256, 512, 256, 262_144, 1.0, 32_768),
    "1b": (1152, 6912, 26, 4, 1, 256, 512, 256, 262_144, 1.0, 32_768),
    "4b": (2560, 10240, 34, 8, 4, 256, 1024, 256, 262_208, 8.0, 131_072),
    "12b": (3840, 15360, 48, 16, 8, 256, 1024, 256, 262_208, 8.0, 131_072),
    "27b": (5376, 21504, 62, 32, 16, 128, 1024, 168, 262_208, 8.0, 131_072),
}
_SIZE_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "query_pre_attn_scalar",
    "vocab_size",
    "rope_factor",
    "max_position_embeddings",
)
GEMMA3_SIZES: dict[str, dict[str, Any]] = {
    name: dict(zip(_SIZE_FIELDS, row, strict=True)) for name, row in _SIZES.items()
}

# What transformers' Gemma3TextConfig (5.24) takes for a field that config.json leaves out.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,  # five sliding layers, then a full one
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The text decoder of one model.

    Attributes:
        family: names the forward pass and the key table: "gemma3".
        layer_types: one per layer; "sliding" attends to the last `sliding_window` tokens, itself
            among them.
        rope_theta_local, rope_theta_global: RoPE base of sliding and of full layers.
        rope_scale_global: positions of full layers are divided by it (linear RoPE scaling).
        query_pre_attn_scalar: attention scores are scaled by its inverse square root.
        max_position: longest input the model was made for, in tokens.
        tie_embeddings: the head is the embedding; always so for the families supported.
        weight_prefix: what stands before `layers.0.…` in the checkpoint's keys, with its dot.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int
    layer_types: tuple[LayerType, ...]
    rope_theta_local: float
    rope_theta_global: float
    rope_scale_global: float
    query_pre_attn_scalar: float
    rms_norm_eps: float
    max_position: int
    tie_embeddings: bool = True
    weight_prefix: str = TEXT_PREFIX


def load_config(model_dir: str | Path) -> ModelConfig:
    """Reads a directory's config.json, and its weights' names to find what precedes them.

    Fields that published files leave out come from the size with the same width and depth, else
    from transformers' defaults.

    Raises:
        UserError: the file is missing or broken, the architecture is not supported, or the config
            asks for something that this forward pass does not do.
    """
    path = Path(model_dir) / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold a JSON object")
    architecture = _architecture(config, path)
    text = config if architecture == "Gemma3ForCausalLM" else _object(config, "text_config", path)
    for part in (config, text):
        _refuse_unsupported(part, path)
    return parse_gemma3(text, path, weight_prefix=weight_prefix(TensorFiles(model_dir), path))


def parse_gemma3(text: dict[str, Any], path: Path, *, weight_prefix: str) -> ModelConfig:
    """ModelConfig of Gemma 3's text fields in config.json's terms; `path` is named in errors."""
    fields = _Fields(text, known_size(text), path)
    local, global_ = _rope(text, path)
    num_layers, head_dim = fields.count("num_hidden_layers"), fields.count("head_dim")
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    if heads % kv_heads:
        raise UserError(
            f"{path}: {heads} query heads do not divide among {kv_heads} key-value heads"
        )
    if head_dim % 2:
        raise UserError(f"{path}: head_dim {head_dim} is odd; RoPE turns pairs")
    return ModelConfig(
        family="gemma3",
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        sliding_window=fields.count("sliding_window"),
        layer_types=_layer_types(text, num_layers, path),
        rope_theta_local=local["rope_theta"],
        rope_theta_global=global_["rope_theta"],
        rope_scale_global=global_["factor"],
        query_pre_attn_scalar=fields.positive("query_pre_attn_scalar"),
        rms_norm_eps=fields.positive("rms_norm_eps"),
        max_position=fields.count("max_position_embeddings"),
        weight_prefix=weight_prefix,
    )


def weight_prefix(keys: Iterable[str], path: Path) -> str:
    """What stands before `embed_tokens.weight` in a checkpoint's keys."""
    found = [key for key in keys if key.endswith("embed_tokens.weight")]
    for prefix in WEIGHT_PREFIXES:
        if prefix + "embed_tokens.weight" in found:
            return prefix
    expected = ", ".join(f"{prefix}embed_tokens.weight" for prefix in WEIGHT_PREFIXES)
    raise UserError(f"{path.parent}: the weights hold none of {expected}; found: {found or 'none'}")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Numbers of a config, each from the file, else the known size, else the defaults."""

    given: dict[str, Any]
    size: dict[str, Any]
    path: Path

    def positive(self, name: str) -> float:
        value = self.given.get(name)
        if value is None:
            value = self.size.get(name, _DEFAULTS.get(name))
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(f"{self.path}: `{name}` must be a positive number, not {value!r}")
        return float(value)

    def count(self, name: str) -> int:
        value = self.positive(name)
        if value != int(value):
            raise UserError(f"{self.path}: `{name}` must be a whole number, not {value!r}")
        return int(value)


def _architecture(config: dict[str, Any], path: Path) -> str:
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        named = [a for a, kind in ARCHITECTURES.items() if kind == config.get("model_type")]
    for architecture in named:
        if architecture in ARCHITECTURES:
            return architecture
    found = ", ".join(map(str, named)) or f"model_type {config.get('model_type')!r}"
    raise UserError(
        f"{path}: {found} is not supported",
        f"Supported are {' and '.join(ARCHITECTURES)} (Gemma 3, 270M to 27B).",
    )


def _refuse_unsupported(config: dict[str, Any], path: Path) -> None:
    """Stops at settings that change the forward pass into one that is not computed here."""
    wanted = {
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
        "hidden_activation": (None, "gelu_pytorch_tanh"),
        "attention_bias": (None, False),
        "use_bidirectional_attention": (None, False),
        "tie_word_embeddings": (None, True),
        "quantization_config": (None,),
    }
    for name, allowed in wanted.items():
        value = config.get(name)
        if value not in allowed:
            expected = " or ".join("null" if a is None else str(a).lower() for a in allowed)
            raise UserError(
                f"{path}: `{name}` is {value!r}; Gemma 3 as published has {expected}",
                "Use the original, unquantized Gemma 3 weights with their own config.json.",
            )


def _object(config: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{path}: `{name}` must be an object, not {value!r}")
    return value or {}


def known_size(text: dict[str, Any]) -> dict[str, Any]:
    """The published size of this width and depth, as in `GEMMA3_SIZES`; empty if there is none."""
    for size in GEMMA3_SIZES.values():
        if all(text.get(key) == size[key] for key in ("hidden_size", "num_hidden_layers")):
            return size
    return {}


def _layer_types(text: dict[str, Any], num_layers: int, path: Path) -> tuple[LayerType, ...]:
    given = text.get("layer_types")
    if given is None:
        name = "sliding_window_pattern"
        found = {name: text.get(name, text.get(f"_{name}"))}
        pattern = _Fields(found, _DEFAULTS, path).count(name)
        return tuple("sliding" if (i + 1) % pattern else "full" for i in range(num_layers))
    names: dict[str, LayerType] = {"sliding_attention": "sliding", "full_attention": "full"}
    given = [str(name) for name in given] if isinstance(given, list) else [str(given)]
    unknown = sorted(set(given) - names.keys())
    if unknown or len(given) != num_layers:
        raise UserError(
            f"{path}: `layer_types` must be {num_layers} of {' and '.join(names)}, "
            + (f"not {', '.join(unknown)}" if unknown else f"not {len(given)}")
        )
    return tuple(names[name] for name in given)


def _rope(text: dict[str, Any], path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """`rope_theta` and `factor` of sliding and of full layers.

    transformers 5 nests them by layer type in `rope_parameters`; before, `rope_theta` and
    `rope_scaling` were the full layers' and `rope_local_base_freq` the sliding ones'.
    """
    nested = _object(text, "rope_parameters", path)
    if "rope_type" in nested or "rope_theta" in nested:
        raise UserError(
            f"{path}: `rope_parameters` must be nested by layer type "
            "(sliding_attention, full_attention)"
        )
    sliding = _object(nested, "sliding_attention", path)
    full = _object(nested, "full_attention", path) | _object(text, "rope_scaling", path)
    return (
        _rope_of(sliding, text, "rope_local_base_freq", path),
        _rope_of(full, text, "rope_theta", path),
    )


def _rope_of(
    rope: dict[str, Any], text: dict[str, Any], theta_name: str, path: Path
) -> dict[str, float]:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    local = theta_name == "rope_local_base_freq"
    if kind not in ("default", "linear") or (local and kind != "default"):
        where = "sliding layers" if local else "full layers"
        raise UserError(f"{path}: RoPE type {kind!r} of {where} is not supported (default, linear)")
    fields = _Fields({theta_name: rope.get("rope_theta", text.get(theta_name))}, {}, path)
    given = {"factor": rope.get("factor") if kind == "linear" else 1.0}
    factor = _Fields(given, {}, path)
    return {"rope_theta": fields.positive(theta_name), "factor": factor.positive("factor")}
