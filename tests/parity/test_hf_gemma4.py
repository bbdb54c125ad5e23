"""Gemma 4 on the Hugging Face engine: one step of each kind, and what comes out of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import tiny_recipe
from tests.tiny_gemma4 import write_tiny_gemma4
from tests.tiny_run import read_summary, tunesmith, write_recipe
from tunesmith.errors import UserError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

pytestmark = pytest.mark.parity

KINDS = ("dense", "e", "moe")
LORA = {"r": 4, "alpha": 8.0, "experts": "frozen"}


@pytest.fixture(scope="module", autouse=True)
def _proof_by_transformers() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunesmith.export.find_spec", importlib.util.find_spec)
        yield


def open_tiny(model_dir: Path, **sections: Any) -> Any:
    from tunesmith.engines.hf import open_trainer, start

    start()
    return open_trainer(tiny_recipe(model_dir, engine="hf", **sections), model_dir)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_of_each_kind_exports_what_was_trained(
    kind: Any, lora: Any, tmp_path: Path
) -> None:
    """G16: text rows on a multimodal checkpoint; its towers are neither loaded nor lost."""
    model = write_tiny_gemma4(tmp_path / "model", kind, multimodal=True)
    recipe = write_recipe(
        tmp_path / "run",
        model,
        engine="hf",
        train={"max_steps": 1, "batch_size": 2, "learning_rate": 0.01},
        run={"dir": str(tmp_path / "out")},
        **({"lora": lora} if lora else {}),
    )
    assert tunesmith("train", recipe) == 0
    summary = read_summary(tmp_path / "out")
    assert summary["export"]["max_logit_gap"] < 1e-3
    exported, base = (
        transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
        for path in (tmp_path / "out/export", model)
    )
    assert not any(exported[1].values())  # G31: every tensor of the base, and none besides
    changed = {
        name
        for name, value in exported[0].state_dict().items()
        if not torch.equal(value, base[0].state_dict()[name])
    }
    assert changed
    assert all(name.startswith(("model.language_model.", "lm_head.")) for name in changed)
    if lora:  # projections alone
        assert all("_proj." in name for name in changed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_decoder_alone_answers_as_the_whole_model(kind: Any, tmp_path: Path) -> None:
    model = write_tiny_gemma4(tmp_path, kind, multimodal=True)
    session = open_tiny(model)
    assert not any("vision" in name or "audio" in name for name in session.trainable)
    ids = np.arange(120, 150, dtype=np.int32)
    whole = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        expected = whole(input_ids=torch.from_numpy(ids).long()[None]).logits[0].numpy()
    assert np.abs(session.logits(ids) - expected).max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_in_language_layers_only(kind: Any, tmp_path: Path) -> None:
    """G17: the towers have modules of the same names."""
    session = open_tiny(write_tiny_gemma4(tmp_path, kind, multimodal=True), lora=LORA)
    names = {name.split(".lora_")[0] for name in session.trainable}
    assert all(name.startswith("model.layers.") for name in names)
    assert {name.rpartition(".")[2] for name in names} == set(
        "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
    )
    assert all(parameter.dtype == torch.float32 for parameter in session.trainable.values())
    frozen = [p for p in session.module.parameters() if not p.requires_grad]
    assert len(frozen) > 30


def test_experts_are_refused_until_the_recipe_says_what_becomes_of_them(tmp_path: Path) -> None:
    model = write_tiny_gemma4(tmp_path, "moe")
    with pytest.raises(UserError, match="8 experts in each layer") as caught:
        open_tiny(model, lora={"r": 4})
    assert "lora.experts: frozen" in str(caught.value)


def test_flash_attention_2_is_refused_for_large_heads(tmp_path: Path) -> None:
    """G12: before a GPU is needed, with a way out."""
    from tunesmith.engines.hf.families import choose_attention, find_family

    model = write_tiny_gemma4(tmp_path, global_head_dim=512)
    with pytest.raises(UserError, match="Gemma 4 has heads of 512") as caught:
        open_tiny(model, train={"attention": "flash_attention_2"})
    assert "sdpa" in str(caught.value)
    assert choose_attention(*find_family(model), "auto") == "sdpa"


def _cut(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _change_tensors(model: Path, change: Any) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    change(tensors)
    save_file(tensors, model / "model.safetensors")


def _own_head(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1


def _write_config(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)


BROKEN = {
    "cut short": (_cut, r"model\.safetensors cannot be read"),
    "missing": (
        lambda model: _change_tensors(model, lambda t: t.pop("model.norm.weight")),
        r"missing: model\.norm\.weight",
    ),
    "unexpected": (
        lambda model: _change_tensors(model, lambda t: t.update(extra=t["model.norm.weight"])),
        "unexpected: extra",
    ),
    "own head": (
        lambda model: _change_tensors(model, _own_head),
        r"lm_head\.weight differs from the embedding",
    ),
    "another shape": (
        lambda model: _change_tensors(model, lambda t: t.update(_narrow(t))),
        r"model\.norm\.weight is \[32\], not \[64\]",
    ),
    "another family": (
        lambda model: _write_config(model, '{"model_type": "llama"}'),
        "model_type 'llama' is not supported",
    ),
    "no JSON": (lambda model: _write_config(model, "{"), r"config\.json cannot be read"),
}


def _narrow(tensors: dict[str, Any]) -> dict[str, Any]:
    return {"model.norm.weight": tensors["model.norm.weight"][:32].copy()}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_models_are_refused_with_what_is_wrong(how: str, tmp_path: Path) -> None:
    model = write_tiny_gemma4(tmp_path)
    damage, message = BROKEN[how]
    damage(model)
    with pytest.raises(UserError, match=message):
        open_tiny(model)


def test_four_bit_weights_are_refused_without_cuda(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    model = write_tiny_gemma4(tmp_path)
    with pytest.raises(UserError, match="need a CUDA device"):
        open_tiny(model, lora={"quantize_base": "nf4"}, run={"export": "none"})


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_packed_rows_do_not_see_each_other(family: str, tmp_path: Path) -> None:
    """G11: the loss of [A, B] is that of A and that of B; positions restart."""
    from tests.tiny_engine import batch_of, words

    write: Any = write_tiny_gemma3 if family == "gemma3" else write_tiny_gemma4
    session = open_tiny(write(tmp_path))
    rng = np.random.default_rng(0)
    a, b = words(rng, 21), words(rng, 14)
    with torch.no_grad():
        both, *alone = (
            float(session.loss_sum(session.module, batch_of(segments, length=40)))
            for segments in ([a, b], [a], [b])
        )
    assert both == pytest.approx(sum(alone), abs=1e-4)


def test_float16_is_never_chosen() -> None:
    """G14: Gemma's activations exceed it."""
    from tunesmith.engines.hf.precision import settle_dtype

    for wanted in ("auto", "bfloat16", "float32"):
        assert settle_dtype(wanted, torch.device("cpu")) in (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("compute_dtype", ["bfloat16", "float32"])
def test_rotary_angles_stay_float32(compute_dtype: str, tmp_path: Path) -> None:
    """A module's `.to(bfloat16)` rounds them with the weights."""
    from tunesmith.engines.hf import open_session

    model = write_tiny_gemma4(tmp_path, dtype="bfloat16")
    scored = open_session(model, compute_dtype=compute_dtype)
    trained = open_tiny(model, train={"compute_dtype": compute_dtype}, lora={"r": 4})
    for session in (scored, trained):
        angles = [b for name, b in session.module.named_buffers() if "inv_freq" in name]
        assert angles
        assert {buffer.dtype for buffer in angles} == {torch.float32}


def test_bfloat16_trains_float32_master_weights(tmp_path: Path) -> None:
    session = open_tiny(
        write_tiny_gemma4(tmp_path, dtype="bfloat16"), train={"compute_dtype": "bfloat16"}
    )
    assert {parameter.dtype for parameter in session.trainable.values()} == {torch.float32}
    lora = open_tiny(
        write_tiny_gemma4(tmp_path / "b", dtype="bfloat16"),
        train={"compute_dtype": "bfloat16"},
        lora={"r": 4},
    )
    frozen = {p.dtype for p in lora.module.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}
    assert {parameter.dtype for parameter in lora.trainable.values()} == {torch.float32}
