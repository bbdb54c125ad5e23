"""`tunesmith export` and the proof behind every export. G numbers: known ways to go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.e2e.test_train import stop_at
from tests.tiny_run import read_lines, tunesmith, write_recipe
from tunesmith.data.chat import Message, choose_template
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.contract import LossSum
from tunesmith.engines.jax import export as engine_export
from tunesmith.engines.jax.session import JaxSession, open_trainer
from tunesmith.errors import UserError
from tunesmith.export import export, export_run
from tunesmith.prepare import load_run, prepare_run

Captured = pytest.CaptureFixture[str]
WEIGHTS = "model.safetensors"


def test_the_folder_alone_gives_the_ids_of_training(overfit: Path) -> None:
    """G4: the base model has no template; the export has the one of training."""
    tokenizer = Tokenizer.load(overfit / "export")
    assert tokenizer.chat_template is not None
    template = choose_template(tokenizer)
    trained = prepare_run(load_run(overfit), lambda line: None).data
    assert trained.template is not None
    assert template.source == trained.template.source
    (row,) = read_lines(overfit.parent / "train.jsonl")
    messages = [Message(**message) for message in row["messages"]]
    assert tokenizer.encode(template.render(messages)) == trained.train.example(0).ids.tolist()


def test_it_is_complete_and_readable_by_others(overfit: Path) -> None:
    export = overfit / "export"
    assert {path.name for path in export.iterdir()} == {
        WEIGHTS,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "tunesmith-proof.json",
    }
    assert export.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in overfit.iterdir() if path.name.startswith(".")] == []
    proof = json.loads((export / "tunesmith-proof.json").read_text())
    assert proof["limit"] == 2e-3
    assert proof["readers"]["numpy"]["tokens"] == 63
    assert proof["readers"]["numpy"]["same_greedy_text"]


def test_a_run_is_exported_again(overfit: Path, tmp_path: Path, capsys: Captured) -> None:
    """The same weights as at its end; and in bfloat16, with the gap that rounding makes."""
    assert tunesmith("export", overfit, tmp_path / "same") == 0
    first, again = load_file(overfit / "export" / WEIGHTS), load_file(tmp_path / "same" / WEIGHTS)
    for key, tensor in first.items():
        np.testing.assert_array_equal(tensor, again[key])
    capsys.readouterr()

    assert tunesmith("export", overfit, tmp_path / "low", "--dtype", "bfloat16") == 0
    assert "(limit 0.25)" in capsys.readouterr().out
    low = load_file(tmp_path / "low" / WEIGHTS)
    for key, tensor in first.items():
        np.testing.assert_array_equal(low[key], tensor.astype(ml_dtypes.bfloat16))
    proof = json.loads((tmp_path / "low" / "tunesmith-proof.json").read_text())
    assert 2e-3 < proof["max_logit_gap"] < 0.25
    config = json.loads((tmp_path / "low" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"


def test_what_cannot_be_exported(overfit: Path, tmp_path: Path, capsys: Captured) -> None:
    assert tunesmith("export", overfit, tmp_path) == 2
    assert "exists already" in capsys.readouterr().err
    assert tunesmith("export", tmp_path, tmp_path / "out") == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert tunesmith("export", overfit, tmp_path / "out", "--kind", "adapter") == 2
    assert "`export: adapter` needs `train.method: lora`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_keeps_the_last_weights_exports_the_last(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`use_best: false` holds for `tunesmith export` too."""
    losses = iter([9.0, 1.0, 2.0, 3.0, 4.0])  # before, steps 2 and 4, after
    monkeypatch.setattr(JaxSession, "loss", lambda *_, **__: LossSum(10 * next(losses), 10))
    sections: dict[str, Any] = {
        "data": {"holdout": {"rows": 1}},
        "eval": {"every_steps": 2},
        "run": {"use_best": False},
    }
    assert tunesmith("train", write_recipe(tmp_path, tiny, **sections)) == 0
    assert tunesmith("export", tmp_path / "run", tmp_path / "out") == 0
    last = load_file(tmp_path / "run" / "export" / WEIGHTS)
    for key, tensor in load_file(tmp_path / "out" / WEIGHTS).items():
        np.testing.assert_array_equal(tensor, last[key])


# --- the proof -----------------------------------------------------------------------------------


def swapped(tensor: np.ndarray) -> np.ndarray:
    """Two neighbouring rows of a matrix, or entries of a vector, in each other's place."""
    return np.concatenate([tensor[1::-1], tensor[2:]])


@pytest.mark.parametrize("tensor", ["model.layers.6.mlp.down_proj.weight", "model.norm.weight"])
def test_a_wrong_tensor_fails_the_export(
    overfit: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    tensor: str,
) -> None:
    """One entry in place of another: exit status 2, and nothing is left behind."""
    write = engine_export.write_weights

    def tampered(out_dir: Path, tensors: Any) -> Any:
        return write(out_dir, ((k, swapped(t) if k == tensor else t) for k, t in tensors))

    monkeypatch.setattr(engine_export, "write_weights", tampered)
    assert tunesmith("export", overfit, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "the export is not what was trained: read by numpy, logits differ by up to" in error
    assert "above the limit of 0.002; nothing was exported" in error
    assert list(tmp_path.iterdir()) == []


def test_a_lost_tensor_fails_the_export(
    overfit: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = engine_export.write_weights
    name = "model.layers.3.self_attn.q_proj.weight"

    def lossy(out_dir: Path, tensors: Any) -> Any:
        return write(out_dir, (pair for pair in tensors if pair[0] != name))

    monkeypatch.setattr(engine_export, "write_weights", lossy)
    assert tunesmith("export", overfit, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "the export cannot be read back" in error
    assert name in error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_proof_keeps_the_export_before(
    overfit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export is replaced when the new one is proven, not before."""
    out = tmp_path / "run"
    export_run(overfit, out, kind=None, dtype=None, say=lambda line: None)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert before
    monkeypatch.setattr("tunesmith.export._GAP_LIMITS", {"float32": 1e-12})
    loaded = load_run(overfit)
    prepared = prepare_run(loaded, lambda line: None)
    session = open_trainer(loaded.recipe, prepared.model_dir)
    with pytest.raises(UserError, match="nothing was exported"):
        export(
            session,
            loaded.recipe,
            prepared.model_dir,
            prepared.data,
            prepared.tokenizer,
            out,
            lambda line: None,
        )
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_interrupted_run_can_be_exported(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    recipe = write_recipe(tmp_path, tiny, train={"checkpoints": {"every_steps": 1}})
    stop_at(3, monkeypatch)
    assert tunesmith("train", recipe) == 130
    assert tunesmith("export", tmp_path / "run", tmp_path / "out") == 0
    assert "after step 2" in capsys.readouterr().out
    base = load_file(tiny / WEIGHTS)
    exported = load_file(tmp_path / "out" / WEIGHTS)
    assert np.abs(exported["model.norm.weight"] - base["model.norm.weight"]).max() > 0.005


def test_adapters_trained_beside_rounded_weights_are_allowed_the_rounding(
    tiny: Path, tmp_path: Path
) -> None:
    """float32 on disk, held in bfloat16: where a device multiplies bfloat16, the demo's case."""
    recipe = write_recipe(
        tmp_path, tiny, lora={"r": 2}, train={"compute_dtype": "bfloat16", "max_steps": 1}
    )
    assert tunesmith("train", recipe) == 0
    proof = json.loads((tmp_path / "run/export/tunesmith-proof.json").read_text())
    assert proof["limit"] == 0.5
    assert 1e-4 < proof["max_logit_gap"] < 0.5
