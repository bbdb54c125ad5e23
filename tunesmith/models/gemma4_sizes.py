"""The published sizes of Gemma 4's text decoder, in config.json's terms.

Values: transformers' conversion script (5.24). The parameter counts of models made from them are
those published: tests/parity/test_published_sizes.py.
"""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"


def _layer_types(count: int, period: int) -> list[str]:
    """Every `period`-th layer attends to all tokens, the others to a window."""
    return [_SLIDING if (i + 1) % period else _FULL for i in range(count)]


# In all sizes alike.
_SHARED: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "vocab_size_per_layer_input": 262_144,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
# In the two large sizes alike.
_LARGE: dict[str, Any] = {
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "attention_k_eq_v": True,
    "use_bidirectional_attention": "vision",
    "sliding_window": 1024,
    "max_position_embeddings": 262_144,
}
# In the two small sizes alike.
_SMALL: dict[str, Any] = {
    "hidden_size_per_layer_input": 256,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "sliding_window": 512,
    "max_position_embeddings": 131_072,
}

GEMMA4_SIZES: dict[str, dict[str, Any]] = {
    "31b": _SHARED
    | _LARGE
    | {
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "num_hidden_layers": 60,
        "layer_types": _layer_types(60, 6),
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
    },
    "26b-a4b": _SHARED
    | _LARGE
    | {
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "layer_types": _layer_types(30, 6),
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "e4b": _SHARED
    | _SMALL
    | {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 42,
        "layer_types": _layer_types(42, 6),
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
    },
    "e2b": _SHARED
    | _SMALL
    | {
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "layer_types": _layer_types(35, 5),
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
    },
}
