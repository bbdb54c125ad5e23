"""A tiny random Gemma 4 as a complete Hugging Face directory.

    write_tiny_gemma4(tmp_path / "tiny", "moe", multimodal=True)

The shapes are the published models' scaled down: config.json has the published files' fields, and
transformers says which tensors such a model has (so tests need it); their values are numpy's, a
function of the arguments alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file

from tests.tiny import _DTYPES, _write_json, write_tiny_tokenizer

Kind = Literal["dense", "e", "moe"]

# Gemma 4's control tokens at their published ids, those of pictures and sound moved down.
CONTROL = {
    7: "<|image>",
    8: "<image|>",
    9: "<|image|>",
    10: "<|audio>",
    11: "<audio|>",
    12: "<|audio|>",
    13: "<|video|>",
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}
STOP_IDS = [1, 106, 50]  # as generation_config.json of the published chat models has them

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"

# Text fields in which the three kinds differ, in config.json's terms.
_KINDS: dict[str, dict[str, Any]] = {
    "dense": {  # 31B
        "layer_types": [_LOCAL] * 5 + [_GLOBAL],
        "intermediate_size": 128,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "use_bidirectional_attention": "vision",
    },
    "e": {  # E2B: the last half of its layers take keys and values from the first
        "layer_types": ([_LOCAL] * 4 + [_GLOBAL]) * 2,
        "intermediate_size": 96,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "use_bidirectional_attention": None,
        "num_kv_shared_layers": 5,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8,
    },
    "moe": {  # 26B-A4B
        "layer_types": [_LOCAL] * 5 + [_GLOBAL],
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "use_bidirectional_attention": "vision",
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    },
}


def write_tiny_gemma4(
    directory: str | Path,
    kind: Kind = "dense",
    *,
    multimodal: bool = False,
    dtype: str = "float32",
    seed: int = 0,
    vocab: int = 512,
    sliding_window: int = 8,
    chat_template: str | None = None,
    **text_fields: Any,
) -> Path:
    """Writes the directory and returns its path.

    Args:
        directory: made if missing; files in it are overwritten.
        kind: "dense" is shaped as 31B: global layers have a wider head and fewer key-value heads,
            and their values are their keys. "e" is shaped as E2B: embeddings for each layer, last
            layers that share keys and values and have a double-wide MLP. "moe" is shaped as
            26B-A4B: a dense MLP beside 8 experts, 2 of them used.
        multimodal: Gemma4ForConditionalGeneration with a vision tower, and for "e" an audio tower,
            as all published checkpoints are; else Gemma4ForCausalLM.
        dtype: of the weights on disk: float32, bfloat16 or float16.
        seed: seeds every weight.
        vocab: 512 or more, for the tokenizer to fit.
        sliding_window: of local layers, in tokens.
        chat_template: goes into tokenizer_config.json.
        text_fields: text fields of config.json to set otherwise.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = _text_config(kind) | {"vocab_size": vocab, "sliding_window": sliding_window}
    text |= {"vocab_size_per_layer_input": vocab} | text_fields
    config = _multimodal_config(text, kind) if multimodal else text
    config["dtype"] = dtype
    _write_json(directory / "config.json", config)

    rng = np.random.default_rng(seed)
    tensors = {
        name: np.asarray(_values(rng, name, shape), _DTYPES[dtype])
        for name, shape in _shapes(directory).items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    write_tiny_tokenizer(directory, vocab=vocab, chat_template=chat_template, control=CONTROL)
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 2, "eos_token_id": STOP_IDS, "pad_token_id": 0},
    )
    return directory


def _text_config(kind: Kind) -> dict[str, Any]:
    fields = {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "final_logit_softcapping": 30.0,
        "rope_parameters": {
            _LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
            _GLOBAL: {
                "rope_type": "proportional",
                "rope_theta": 1_000_000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    } | _KINDS[kind]
    return fields | {"num_hidden_layers": len(fields["layer_types"])}


def _multimodal_config(text: dict[str, Any], kind: Kind) -> dict[str, Any]:
    small = kind == "e"
    vision = {
        "model_type": "gemma4_vision",
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "global_head_dim": 12,
        "patch_size": 4,
        "position_embedding_size": 32,
        "use_clipped_linears": small,
        "standardize": not small,
    }
    audio = {
        "model_type": "gemma4_audio",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "subsampling_conv_channels": [8, 4],
        "output_proj_dims": 24,
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "vision_config": vision,
        "audio_config": audio if small else None,
        "boi_token_id": 7,
        "eoi_token_id": 8,
        # Stand-ins of pictures and sounds are outside the tiny vocabulary: an answer of a random
        # model would hold them, and they are embedded otherwise than the text decoder does.
        "image_token_id": 100_009,
        "boa_token_id": 10,
        "eoa_token_index": 11,
        "audio_token_id": 100_012,
        "video_token_id": 100_013,
        "tie_word_embeddings": True,
    }


def _shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint's tensors, from a model without memory."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    return {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # the embedding
    }


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray | float:
    """Random values of the size that training would leave, so that no tensor could be left out."""
    if name.endswith(("_min", "_max")):  # bounds of the towers' clipped layers
        return (3 + rng.random(shape)) * (-1 if name.endswith("_min") else 1)
    if name.endswith("layer_scalar"):
        return 0.5 + rng.random(shape)
    normal = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2 and not name.endswith("bias"):  # norms and other scales
        return 1 + np.float32(0.2) * normal
    fan_in = np.prod(shape[1:]) if len(shape) == 4 or len(shape) < 2 else shape[-1]
    return normal * np.float32(fan_in**-0.5)
