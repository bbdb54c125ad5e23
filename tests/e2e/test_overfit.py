"""A model that has one answer by heart gives it, and stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import ANSWER, QUESTION
from tests.tiny_run import read_summary, tunesmith
from tunesmith.data.chat import choose_template
from tunesmith.data.prompts import prompt_ids
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.jax.session import open_session
from tunesmith.recipe.schema import Generation
from tunesmith.runs.rundir import read_json


def test_it_answers_exactly_and_stops_by_itself(overfit: Path) -> None:
    """G1: from the exported folder alone, with room for many more tokens."""
    tokenizer = Tokenizer.load(overfit / "export")
    prompt = prompt_ids(QUESTION, tokenizer, choose_template(tokenizer))
    session = open_session(overfit / "export", compute_dtype="float32")
    (answer,) = session.generate(
        [prompt], Generation(max_new_tokens=64), stop_ids=tokenizer.stop_ids
    )
    assert tokenizer.decode(answer.ids, skip_special=False) == ANSWER
    assert answer.finished


def test_before_and_after_are_measured(overfit: Path) -> None:
    summary = read_summary(overfit)
    before, after = summary["before"], summary["after"]
    assert before["loss"] > 5.0
    assert after["loss"] < 0.1
    assert (before["execution_accuracy"], before["exact_match"]) == (0.0, 0.0)
    assert (after["execution_accuracy"], after["exact_match"]) == (1.0, 1.0)
    (sample,) = read_json(overfit / "samples.json")
    assert sample["prompt"] == QUESTION
    assert sample["before"] != sample["after"] == ANSWER


def test_generate_prints_the_answer(overfit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tunesmith("generate", overfit, "--prompt", QUESTION) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"
