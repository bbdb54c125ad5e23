"""config.json → ModelConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.tiny import write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.models.catalog import ModelConfig, load_config

LINEAR_8 = {"factor": 8.0, "rope_type": "linear"}

# The text fields that the published config.json files hold; what they leave out is left out.
PUBLISHED: dict[str, dict[str, Any]] = {
    "270m": {
        "head_dim": 256,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "vocab_size": 262144,
    },
    "1b": {
        "head_dim": 256,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "4b": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": LINEAR_8,
        "sliding_window": 1024,
    },
    "12b": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "rope_scaling": LINEAR_8,
        "sliding_window": 1024,
    },
    "27b": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": LINEAR_8,
        "sliding_window": 1024,
    },
}

# vocabulary, hidden, ffn, layers, query heads, key-value heads, head_dim, window, query_pre_attn,
# RoPE factor, longest input
EXPECTED = {
    "270m": (262144, 640, 2048, 18, 4, 1, 256, 512, 256, 1, 32768),
    "1b": (262144, 1152, 6912, 26, 4, 1, 256, 512, 256, 1, 32768),
    "4b": (262208, 2560, 10240, 34, 8, 4, 256, 1024, 256, 8, 131072),
    "12b": (262208, 3840, 15360, 48, 16, 8, 256, 1024, 256, 8, 131072),
    "27b": (262208, 5376, 21504, 62, 32, 16, 128, 1024, 168, 8, 131072),
}


def model_dir(directory: Path, config: dict[str, Any], prefix: str = "model.") -> Path:
    """A directory with this config.json and weights that have nothing but the embedding's name."""
    (directory / "config.json").write_text(json.dumps(config))
    embedding = {f"{prefix}embed_tokens.weight": np.zeros((1, 1), np.float32)}
    save_file(embedding, directory / "model.safetensors")
    return directory


def as_published(size: str) -> dict[str, Any]:
    text = PUBLISHED[size]
    if size in ("270m", "1b"):
        return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **text}
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", **text},
        "vision_config": {"model_type": "siglip_vision_model"},
    }


def figures(config: ModelConfig) -> tuple[float, ...]:
    return (
        config.vocab_size,
        config.hidden_size,
        config.intermediate_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.sliding_window,
        config.query_pre_attn_scalar,
        config.rope_scale_global,
        config.max_position,
    )


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_config_gives_the_model_of_that_size(size: str, tmp_path: Path) -> None:
    prefix = "model." if size in ("270m", "1b") else "language_model.model."
    config = load_config(model_dir(tmp_path, as_published(size), prefix))
    assert figures(config) == EXPECTED[size]
    assert config.weight_prefix == prefix
    assert (config.rope_theta_local, config.rope_theta_global) == (1e4, 1e6)
    assert config.rms_norm_eps == 1e-6
    full = [i for i, kind in enumerate(config.layer_types) if kind == "full"]
    assert full == list(range(5, config.num_layers, 6))
    assert len(config.layer_types) == config.num_layers
    assert config.tie_embeddings


def test_head_counts_left_out_come_from_the_size_not_from_defaults(tmp_path: Path) -> None:
    config = as_published("12b")
    for name in ("num_attention_heads", "num_key_value_heads", "sliding_window"):
        del config["text_config"][name]
    loaded = load_config(model_dir(tmp_path, config, "language_model.model."))
    assert (loaded.num_heads, loaded.num_kv_heads, loaded.sliding_window) == (16, 8, 1024)


def test_nested_rope_parameters_equal_the_older_fields(tmp_path: Path) -> None:
    old = as_published("4b")
    nested = json.loads(json.dumps(old))
    del nested["text_config"]["rope_scaling"]
    nested["text_config"]["rope_parameters"] = {
        "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    }
    prefix = "language_model.model."
    from_old = load_config(model_dir(tmp_path, old, prefix))
    assert load_config(model_dir(tmp_path, nested, prefix)) == from_old
    assert from_old.rope_scale_global == 8.0


def test_rope_thetas_are_not_swapped(tmp_path: Path) -> None:
    config = as_published("270m") | {"rope_theta": 5e5, "rope_local_base_freq": 2e4}
    loaded = load_config(model_dir(tmp_path, config))
    assert (loaded.rope_theta_global, loaded.rope_theta_local) == (5e5, 2e4)


def test_layer_types_win_over_the_pattern(tmp_path: Path) -> None:
    config = as_published("1b") | {"layer_types": ["full_attention"] * 26}
    assert load_config(model_dir(tmp_path, config)).layer_types == ("full",) * 26


@pytest.mark.parametrize("name", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_pattern_sets_the_layers(name: str, tmp_path: Path) -> None:
    config = as_published("1b")
    del config["sliding_window_pattern"]
    types = load_config(model_dir(tmp_path, config | {name: 2})).layer_types
    assert types == ("sliding", "full") * 13


@pytest.mark.parametrize("pattern", [0, "six", 2.5])
def test_pattern_must_be_a_whole_number(pattern: Any, tmp_path: Path) -> None:
    config = as_published("1b") | {"sliding_window_pattern": pattern}
    with pytest.raises(UserError, match="`sliding_window_pattern` must be a"):
        load_config(model_dir(tmp_path, config))


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model."])
def test_prefix_is_found_in_the_weights(prefix: str, tmp_path: Path) -> None:
    assert load_config(write_tiny_gemma3(tmp_path, prefix=prefix)).weight_prefix == prefix


def test_weights_without_an_embedding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none of model\.embed_tokens\.weight"):
        load_config(model_dir(tmp_path, as_published("270m"), "transformer."))


@pytest.mark.parametrize(
    ("architectures", "model_type", "found"),
    [
        (["LlamaForCausalLM"], "llama", "LlamaForCausalLM"),
        (["Gemma2ForCausalLM"], "gemma2", "Gemma2ForCausalLM"),
        (["Gemma3TextModel"], "gemma3_text", "Gemma3TextModel"),
        (None, "mistral", "model_type 'mistral'"),
        ("Gemma3ForCausalLM", None, "model_type None"),
    ],
)
def test_unknown_architecture_lists_the_supported_ones(
    architectures: Any, model_type: str | None, found: str, tmp_path: Path
) -> None:
    config = as_published("270m") | {"architectures": architectures, "model_type": model_type}
    with pytest.raises(UserError, match="is not supported") as refused:
        load_config(model_dir(tmp_path, config))
    assert found in refused.value.message
    assert "Gemma3ForCausalLM" in str(refused.value.hint)
    assert "Gemma3ForConditionalGeneration" in str(refused.value.hint)


def test_model_type_stands_in_for_a_missing_architecture(tmp_path: Path) -> None:
    config = as_published("270m")
    del config["architectures"]
    assert load_config(model_dir(tmp_path, config)).num_layers == 18


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("hidden_activation", "silu"),
        ("hidden_activation", "gelu"),
        ("attention_bias", True),
        ("use_bidirectional_attention", True),
        ("tie_word_embeddings", False),
        ("quantization_config", {"quant_method": "bitsandbytes"}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", {"type": "linear", "factor": 0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}),
        ("rope_parameters", {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}),
        ("rope_parameters", [1]),
        ("layer_types", ["sliding_attention"] * 17 + ["chunked_attention"]),
        ("layer_types", ["sliding_attention"] * 17),
        ("layer_types", "sliding_attention"),
        ("layer_types", [["sliding_attention"]] * 18),
        ("num_attention_heads", 0),
        ("num_attention_heads", "4"),
        ("num_key_value_heads", 3),
        ("head_dim", 25),
        ("hidden_size", 640.5),
        ("sliding_window", True),
        ("rms_norm_eps", -1e-6),
    ],
)
def test_setting_that_is_not_computed_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    """G15, G33: a config that is read wrongly trains a wrong model without a word."""
    config = as_published("270m") | {field: value}
    with pytest.raises(UserError) as refused:
        load_config(model_dir(tmp_path, config))
    assert str(tmp_path / "config.json") in refused.value.message
    assert field in refused.value.message or field.startswith(("rope", "num_key", "sliding_att"))


def test_refused_setting_is_found_in_the_outer_config_too(tmp_path: Path) -> None:
    config = as_published("4b") | {"tie_word_embeddings": False}
    with pytest.raises(UserError, match="tie_word_embeddings"):
        load_config(model_dir(tmp_path, config, "language_model.model."))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"model_type":\n "gemma3_text",,}', "config.json:2 is not valid JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (None, "config.json is missing"),
    ],
)
def test_broken_config_is_named(content: bytes | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=says):
        load_config(tmp_path)


def test_multimodal_text_config_must_be_an_object(tmp_path: Path) -> None:
    config = as_published("4b") | {"text_config": "gemma"}
    with pytest.raises(UserError, match="`text_config` must be an object"):
        load_config(model_dir(tmp_path, config))
