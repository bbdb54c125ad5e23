"""LoRA adapters in PEFT's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.tiny import adapter_key, write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.models.adapter import merged, read_adapter
from tunesmith.models.catalog import load_config
from tunesmith.models.reference import load
from tunesmith.models.weights import read_weights

FILE = "adapter_model.safetensors"
NAMES = ["layers.0.attn.q", "layers.3.mlp.down"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_gemma3(tmp_path / "model")


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    write_settings(directory)
    config, rng = load_config(model), np.random.default_rng(0)
    shapes = {"layers.0.attn.q": (64, 64), "layers.3.mlp.down": (64, 128)}
    tensors = {}
    for name, (rows, columns) in shapes.items():
        a, b = rng.standard_normal((4, columns)), rng.standard_normal((rows, 4))
        tensors[adapter_key(config, name, "A")] = a.astype(np.float32)
        tensors[adapter_key(config, name, "B")] = b.astype(np.float32)
    save_file(tensors, directory / FILE)
    return directory


def write_settings(directory: Path, **changes: Any) -> None:
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "rank_pattern": {}}
    (directory / "adapter_config.json").write_text(json.dumps(settings | changes))


def test_keys_are_pefts(model: Path, tmp_path: Path) -> None:
    key = adapter_key(load_config(model), "layers.0.attn.q", "A")
    assert key == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    multimodal = write_tiny_gemma3(tmp_path / "mm", prefix="language_model.model.")
    key = adapter_key(load_config(multimodal), "layers.0.mlp.up", "B")
    assert key == "base_model.model.model.language_model.layers.0.mlp.up_proj.lora_B.weight"


def test_merging_adds_the_scaled_product(model: Path, adapter: Path) -> None:
    config = load_config(model)
    weights = read_weights(model, config)
    read = read_adapter(adapter, config)
    assert read.scale == 1.5
    assert sorted(read.pairs) == NAMES
    result = merged(weights, read)
    stored = load_file(adapter / FILE)
    for name, tensor in weights.items():
        expected = tensor
        if name in NAMES:
            a, b = (stored[adapter_key(config, name, matrix)] for matrix in ("A", "B"))
            expected = tensor + 1.5 * b @ a
            assert np.abs(expected - tensor).max() > 1
        np.testing.assert_allclose(result[name], expected, rtol=1e-6, atol=1e-5)


def test_reference_with_adapter_differs_from_its_base(model: Path, adapter: Path) -> None:
    ids = [2, 300, 301, 302]
    assert np.abs(load(model, adapter).forward(ids) - load(model).forward(ids)).max() > 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"bias": "all"},
        {"rank_pattern": {"q_proj": 8}},
        {"modules_to_save": ["lm_head"]},
        {"fan_in_fan_out": True},
        {"peft_type": "IA3"},
        {"r": 0},
        {"lora_alpha": None},
    ],
)
def test_other_kinds_of_adapter_are_refused(
    changes: dict[str, Any], model: Path, adapter: Path
) -> None:
    write_settings(adapter, **changes)
    with pytest.raises(UserError, match=r"adapter_config\.json"):
        read_adapter(adapter, load_config(model))


def test_adapter_of_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = write_tiny_gemma3(tmp_path / "other", hidden=32)
    with pytest.raises(UserError, match=r"adapted as \(64, 64\), but is \(64, 32\)"):
        read_adapter(adapter, load_config(other))
    multimodal = write_tiny_gemma3(tmp_path / "mm", prefix="language_model.model.")
    with pytest.raises(UserError, match="does not fit the model"):
        read_adapter(adapter, load_config(multimodal))


def test_half_an_adapter_is_refused(model: Path, adapter: Path) -> None:
    config = load_config(model)
    stored = load_file(adapter / FILE)
    del stored[adapter_key(config, NAMES[0], "B")]
    save_file(stored, adapter / FILE)
    with pytest.raises(UserError, match="is missing"):
        read_adapter(adapter, config)


def test_missing_files_are_named(model: Path, adapter: Path) -> None:
    config = load_config(model)
    (adapter / FILE).unlink()
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors"):
        read_adapter(adapter, config)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(UserError, match=r"adapter_config\.json is missing"):
        read_adapter(adapter, config)
