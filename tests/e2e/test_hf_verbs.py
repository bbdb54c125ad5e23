"""The verbs with `engine: hf`: what a user of it would type, one after another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ANSWER, QUESTION, sql_sections, write_sql_rows
from tests.tiny_gemma4 import write_tiny_gemma4
from tests.tiny_run import read_lines, read_summary, tunesmith, write_recipe

pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def learnt(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run of a model that knows one answer by heart."""
    folder = tmp_path_factory.mktemp("hf")
    write_sql_rows(folder)
    sections = sql_sections()
    sections["eval"]["text_to_sql"]["rows_while_training"] = 1
    recipe = write_recipe(
        folder, tiny, engine="hf", lora={"r": 16, "alpha": 64.0}, **_faster(sections)
    )
    assert tunesmith("train", recipe) == 0
    return folder / "run"


def _faster(sections: dict[str, Any]) -> dict[str, Any]:
    sections["train"] |= {"learning_rate": 0.01}
    return sections


def test_a_model_learns_an_answer_and_where_it_ends(learnt: Path) -> None:
    """G1: overfit on one answer, it stops by itself. G21: evaluated while training."""
    summary = read_summary(learnt)
    assert summary["engine"] == "hf"
    assert summary["before"]["execution_accuracy"] == 0.0
    assert summary["after"]["execution_accuracy"] == summary["after"]["exact_match"] == 1.0
    assert summary["after"]["loss"] < 0.5  # as low as frozen random embeddings let it
    assert summary["best_step"] is not None
    after = json.loads((learnt / "samples.json").read_text())[0]["after"]
    assert after == ANSWER
    evaluated = [line for line in read_lines(learnt / "metrics.jsonl") if line["kind"] == "eval"]
    assert [line["step"] for line in evaluated] == [20, 40]
    assert evaluated[-1]["execution_accuracy"] == 1.0


def test_evaluate_measures_the_export(learnt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tunesmith("evaluate", learnt, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["loss"] == pytest.approx(read_summary(learnt)["after"]["loss"], abs=1e-3)
    assert figures["execution_accuracy"] == 1.0


def test_generate_answers(learnt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tunesmith("generate", learnt, "--prompt", QUESTION) == 0
    assert ANSWER in capsys.readouterr().out


def test_generate_takes_the_engine_that_knows_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_gemma4(tmp_path, multimodal=True)
    ask = ("generate", model, "--prompt", "once upon", "--plain", "--max-new-tokens", "4")
    assert tunesmith(*ask) == 0
    assert len(capsys.readouterr().out) > 1


def test_export_writes_the_adapter_again(learnt: Path, tmp_path: Path) -> None:
    assert tunesmith("export", learnt, tmp_path / "adapter", "--kind", "adapter") == 0
    proof = json.loads((tmp_path / "adapter/tunesmith-proof.json").read_text())
    assert proof["kind"] == "adapter"
    assert proof["max_logit_gap"] < 2e-3
