"""The tiny Gemma 4 models that tests use are what transformers takes for Gemma 4."""

from __future__ import annotations

import pytest

from tests.tiny_gemma4 import write_tiny_gemma4

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity


def _load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("kind", ["dense", "e", "moe"])
def test_tiny_models_load_whole_and_give_finite_logits(tmp_path, kind, multimodal):
    model, info = _load(write_tiny_gemma4(tmp_path, kind, multimodal=multimodal))
    assert not any(info.values()), info
    expected = "Gemma4ForConditionalGeneration" if multimodal else "Gemma4ForCausalLM"
    assert type(model).__name__ == expected

    with torch.no_grad():
        logits = model(input_ids=torch.arange(120, 150)[None]).logits
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 2


def test_dense_is_shaped_as_31b(tmp_path):
    model, _ = _load(write_tiny_gemma4(tmp_path, "dense"))
    local, global_ = model.model.layers[0].self_attn, model.model.layers[5].self_attn
    assert (local.q_proj.out_features, local.k_proj.out_features) == (4 * 16, 2 * 16)
    assert (global_.q_proj.out_features, global_.k_proj.out_features) == (4 * 32, 1 * 32)
    assert local.v_proj is not None
    assert global_.v_proj is None
    assert len({layer.layer_scalar.item() for layer in model.model.layers}) == 6


def test_e_is_shaped_as_e2b(tmp_path):
    model, _ = _load(write_tiny_gemma4(tmp_path, "e"))
    layers = model.model.layers
    assert [hasattr(layer.self_attn, "k_proj") for layer in layers] == [True] * 5 + [False] * 5
    assert [layer.mlp.gate_proj.out_features for layer in layers] == [96] * 5 + [192] * 5
    assert model.model.embed_tokens_per_layer.weight.shape == (512, 10 * 8)


def test_moe_is_shaped_as_26b(tmp_path):
    model, _ = _load(write_tiny_gemma4(tmp_path, "moe"))
    assert model.model.layers[0].experts.gate_up_proj.shape == (8, 2 * 16, 64)
    assert model.model.layers[0].mlp.gate_proj.out_features == 48


@pytest.mark.parametrize(("kind", "towers"), [("dense", {"vision"}), ("e", {"vision", "audio"})])
def test_multimodal_checkpoints_hold_towers(tmp_path, kind, towers):
    model, _ = _load(write_tiny_gemma4(tmp_path, kind, multimodal=True))
    found = {name.split(".")[1].removesuffix("_tower") for name, _ in model.named_parameters()}
    assert {name for name in found if name in ("vision", "audio")} == towers


def test_weights_are_a_function_of_the_seed(tmp_path):
    first, again, other = (
        write_tiny_gemma4(tmp_path / str(n), seed=seed) / "model.safetensors"
        for n, seed in enumerate((0, 0, 1))
    )
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
