"""`tunesmith evaluate` and `tunesmith generate` on runs and models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ANSWER, QUESTION, sql_sections, write_sql_rows
from tests.tiny_run import read_summary, tunesmith, write_recipe
from tunesmith.engines.jax.session import JaxSession
from tunesmith.runs.rundir import read_json

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def plain(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on plain text, nothing exported and nothing evaluated."""
    folder = tmp_path_factory.mktemp("plain")
    recipe = write_recipe(folder, tiny, train={"max_steps": 2}, run={"export": "none"})
    assert tunesmith("train", recipe) == 0
    return folder / "run"


# --- evaluate ------------------------------------------------------------------------------------


def test_a_run_gives_its_after_figures(overfit: Path, capsys: Captured) -> None:
    assert tunesmith("evaluate", overfit) == 0
    loss = read_summary(overfit)["after"]["loss"]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"loss {loss:.4f} over 18 target tokens",
        "execution accuracy 100.0% of 1, exact match 100.0% of 1",
    ]


def test_a_recipe_gives_its_base_models_figures(overfit: Path, capsys: Captured) -> None:
    recipe = overfit.parent / "recipe.yaml"
    assert tunesmith("evaluate", recipe, "--json") == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)  # progress goes to stderr, so that this is JSON alone
    before = read_json(overfit / "evaluation" / "before.json")
    assert record["loss"] == pytest.approx(before["loss"])
    assert record["text_to_sql"]["answers"] == before["text_to_sql"]["answers"]
    assert record.keys() == before.keys()


def test_another_model_on_the_same_rows(overfit: Path, tiny: Path, capsys: Captured) -> None:
    recipe = overfit.parent / "recipe.yaml"
    assert tunesmith("evaluate", recipe, "--model", overfit / "export", "--json") == 0
    assert json.loads(capsys.readouterr().out)["exact_match"] == 1.0
    assert tunesmith("evaluate", overfit, "--model", tiny, "--json") == 0
    assert json.loads(capsys.readouterr().out)["exact_match"] == 0.0
    settings = ["--set", "eval.text_to_sql=null", "--json"]
    assert tunesmith("evaluate", recipe, *settings) == 0
    assert json.loads(capsys.readouterr().out)["questions"] is None


def test_what_cannot_be_evaluated(
    overfit: Path, plain: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert tunesmith("evaluate", overfit, "--set", "eval.max_rows=1") == 2
    assert "--set changes recipes, not runs" in capsys.readouterr().err
    assert tunesmith("evaluate", plain) == 2
    assert "has exported nothing yet" in capsys.readouterr().err
    assert tunesmith("evaluate", plain.parent / "recipe.yaml") == 2
    assert "nothing to measure on" in capsys.readouterr().err
    recipe = overfit.parent / "recipe.yaml"
    assert tunesmith("evaluate", recipe, "--model", tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_an_adapter_is_measured_on_its_base(tiny: Path, tmp_path: Path, capsys: Captured) -> None:
    write_sql_rows(tmp_path)
    sections = sql_sections() | {"lora": {"r": 4, "alpha": 8.0}}
    sections["train"] |= {"epochs": 3.0, "learning_rate": 0.02}
    sections |= {"run": {"export": "adapter"}}
    assert tunesmith("train", write_recipe(tmp_path, tiny, **sections)) == 0
    summary = read_summary(tmp_path / "run")
    assert summary["after"]["loss"] < summary["before"]["loss"] - 0.3
    capsys.readouterr()
    assert tunesmith("evaluate", tmp_path / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(
        summary["after"]["loss"], abs=1e-4
    )
    (sample,) = read_json(tmp_path / "run" / "samples.json")
    assert tunesmith("generate", tmp_path / "run", "--prompt", QUESTION) == 0
    assert capsys.readouterr().out == sample["after"] + "\n"


# --- generate ------------------------------------------------------------------------------------


def output(capsys: Captured, *arguments: Any) -> str:
    assert tunesmith(*arguments) == 0
    return capsys.readouterr().out


def test_several_prompts_are_answered_in_order(tiny: Path, capsys: Captured) -> None:
    """A base model just goes on; each answer is the one that its prompt alone gets."""
    prompts = ["once upon", "the cat", "a mat"]
    short = ["--max-new-tokens", "8"]
    alone = [output(capsys, "generate", tiny, "--prompt", prompt, *short) for prompt in prompts]
    flags = [flag for prompt in prompts for flag in ("--prompt", prompt)]
    assert output(capsys, "generate", tiny, *flags, *short) == "".join(alone)
    assert len(set(alone)) == 3


def test_plain_text_is_continued_without_turns(overfit: Path, tiny: Path, capsys: Captured) -> None:
    chat = output(capsys, "generate", overfit, "--prompt", QUESTION)
    plain = output(capsys, "generate", overfit, "--prompt", QUESTION, "--plain")
    assert chat == f"{ANSWER}\n" != plain
    # A base model has no template and needs no flag.
    short = ["--prompt", "once upon", "--max-new-tokens", "4"]
    assert output(capsys, "generate", tiny, *short) == output(
        capsys, "generate", tiny, *short, "--plain"
    )


def test_flags_set_length_and_sampling(tiny: Path, capsys: Captured) -> None:
    base = ["generate", tiny, "--prompt", "once", "--max-new-tokens", "12"]
    greedy = output(capsys, *base)
    drawn = [*base, "--temperature", "1.5", "--seed"]
    one, again, two = (output(capsys, *drawn, seed) for seed in ("1", "1", "2"))
    assert one == again
    assert len({greedy, one, two}) == 3
    narrow = output(capsys, *base, "--temperature", "1.5", "--top-k", "1")
    assert narrow == greedy


def test_a_conversation_is_remembered(
    overfit: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line from a pipe; /new forgets, blank lines are passed over."""
    asked: list[int] = []
    generate: Callable[..., Any] = JaxSession.generate

    def spy(self: JaxSession, prompts: Any, *rest: Any, **options: Any) -> Any:
        asked.extend(len(prompt) for prompt in prompts)
        return generate(self, prompts, *rest, **options)

    monkeypatch.setattr(JaxSession, "generate", spy)
    question = QUESTION.replace("\n", " ")
    monkeypatch.setattr(sys, "stdin", StringIO(f"{question}\n\n{question}\n/new\n{question}"))
    assert tunesmith("generate", overfit) == 0
    captured = capsys.readouterr().out
    assert len(asked) == 3
    assert asked[0] == asked[2] < asked[1]  # the first turn is part of the second prompt
    assert captured.count("\n") >= 3


def test_what_cannot_be_asked(plain: Path, tmp_path: Path, capsys: Captured) -> None:
    assert tunesmith("generate", plain, "--prompt", "x") == 2
    assert "has exported nothing yet" in capsys.readouterr().err
    assert tunesmith("generate", tmp_path / "missing.gguf", "--prompt", "x") == 2
    assert "missing.gguf" in capsys.readouterr().err
    assert tunesmith("generate", tmp_path, "--prompt", "x") == 2
    assert "config.json" in capsys.readouterr().err


def test_a_prompt_beyond_the_models_length(tiny: Path, capsys: Captured) -> None:
    assert tunesmith("generate", tiny, "--prompt", "q " * 1000) == 2
    assert "tokens; 1 to 896 fit the model together with 128 new ones" in capsys.readouterr().err
