"""Parameters: declared once, stacked from a checkpoint and taken apart again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tunesmith.engines.jax.export import unstack_adapter
from tunesmith.engines.jax.params import declare, declare_lora, init_lora, load_params
from tunesmith.models.catalog import ModelConfig, load_config
from tunesmith.models.weights import parameter_specs, read_weights
from tunesmith.recipe.schema import LoraSection


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma3(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def config(tiny: Path) -> ModelConfig:
    return load_config(tiny)


def test_every_checkpoint_parameter_is_declared_once(config: ModelConfig) -> None:
    declared, specs = declare(config), parameter_specs(config)
    sizes = {name: int(np.prod(d.shape)) for name, d in declared.items()}
    assert sum(sizes.values()) == sum(int(np.prod(spec.shape)) for spec in specs.values())
    assert declared["embed"].shape == (512, 64)
    assert declared["layers.mlp.down"].shape == (7, 64, 128)
    assert declared["layers.mlp.down"].axes == ("layers", "hidden", "ffn")
    assert all(len(d.shape) == len(d.axes) for d in declared.values())


def test_weight_decay_spares_norms_alone(config: ModelConfig) -> None:
    lora = declare_lora(config, LoraSection())
    spared = {name for name, d in (declare(config) | lora).items() if not d.decays}
    assert spared == {
        "final_norm",
        "layers.attn.q_norm",
        "layers.attn.k_norm",
        "layers.input_norm",
        "layers.post_attn_norm",
        "layers.pre_ffw_norm",
        "layers.post_ffw_norm",
    }


def test_layers_are_stacked_in_order(tiny: Path, config: ModelConfig) -> None:
    weights = read_weights(tiny, config)
    params = load_params(config, weights, "float32")
    np.testing.assert_array_equal(params["embed"], weights["embed"])
    for layer in range(7):
        for name in ("attn.o", "mlp.up", "attn.k_norm"):
            np.testing.assert_array_equal(
                params[f"layers.{name}"][layer], weights[f"layers.{layer}.{name}"]
            )


def test_types_by_name(tiny: Path, config: ModelConfig) -> None:
    types = dict.fromkeys(declare(config), "float32") | {"layers.attn.q": "bfloat16"}
    params = load_params(config, read_weights(tiny, config), types)
    assert params["layers.attn.q"].dtype == "bfloat16"
    assert params["layers.attn.k"].dtype == "float32"


def test_adapters_start_from_numpy_by_name_and_seed(config: ModelConfig) -> None:
    """Both engines must start from the same numbers, so these are fixed."""
    fresh = init_lora(config, LoraSection(r=4), seed=0)
    again = init_lora(config, LoraSection(r=4), seed=0)
    other = init_lora(config, LoraSection(r=4), seed=1)
    assert len(fresh) == 14
    for name, array in fresh.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, again[name])
        assert array.any() == name.endswith("lora_a")
        assert np.array_equal(array, other[name]) == name.endswith("lora_b")
    q = fresh["layers.attn.q.lora_a"]
    assert q.shape == (7, 4, 64)
    assert np.abs(q).max() <= 1 / 8
    np.testing.assert_allclose(q[0, 0, :3], [0.09576798, -0.06785183, -0.02233835], rtol=1e-6)


def test_only_the_targets_get_adapters(config: ModelConfig) -> None:
    fresh = init_lora(config, LoraSection(targets=["v_proj", "down_proj"]), seed=0)
    assert sorted(fresh) == [
        "layers.attn.v.lora_a",
        "layers.attn.v.lora_b",
        "layers.mlp.down.lora_a",
        "layers.mlp.down.lora_b",
    ]


def test_adapters_come_apart_by_layer(config: ModelConfig) -> None:
    lora = LoraSection(r=4, alpha=6.0, targets=["q_proj"])
    rng = np.random.default_rng(0)
    trained = {
        name: rng.standard_normal(d.shape, dtype=np.float32)
        for name, d in declare_lora(config, lora).items()
    }
    adapter = unstack_adapter(config, trained, lora)
    assert adapter.scale == 1.5
    assert sorted(adapter.pairs) == [f"layers.{layer}.attn.q" for layer in range(7)]
    a, b = adapter.pairs["layers.3.attn.q"]
    np.testing.assert_array_equal(a, trained["layers.attn.q.lora_a"][3])
    np.testing.assert_array_equal(b, trained["layers.attn.q.lora_b"][3])
