"""`tunesmith inspect`: what it shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.data_recipe import data_recipe, write_rows
from tests.tiny import write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.inspect import inspect
from tunesmith.recipe.load import LoadedRecipe
from tunesmith.recipe.schema import ModelSection, Recipe

PAIR = {"files": ["a.jsonl"], "format": "prompt_completion"}


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    write_tiny_gemma3(tmp_path / "model")
    rows = [{"prompt": "Q [bold]\n", "completion": f"the {n}"} for n in range(9)]
    write_rows(tmp_path / "a.jsonl", rows)

    def make(**data: Any) -> Recipe:
        made = data_recipe(**{"train": PAIR, "max_length": 32, **data})
        model = ModelSection(id="model", source="dir")
        return made.model_copy(update={"model": model})

    return make


def shown(recipe: Recipe, folder: Path, *, terminal: bool = False, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200)
    inspect(LoadedRecipe(recipe, folder, None, ""), console=console, **options)
    return out.getvalue()


def test_rows_are_shown_token_by_token_with_targets_marked(recipe: Any, tmp_path: Path) -> None:
    """Square brackets in a text are text, not the console's markup."""
    lines = shown(recipe(), tmp_path, rows=2).splitlines()
    assert lines[0] == "train, example 1 of 9: 15 tokens, 5 of them targets (in « »)"
    assert lines[1] == "<bos> Q ▁ [ b o l d ] ⏎ «t» «he» «▁» «0» «<eos>»"
    assert sum(line.startswith("train, example") for line in lines) == 2


def test_colours_mark_targets_on_a_terminal(recipe: Any, tmp_path: Path) -> None:
    text = shown(recipe(), tmp_path, rows=1, terminal=True)
    assert "\x1b[1;32mhe\x1b[0m" in text
    assert "\x1b[2m<bos>\x1b[0m" in text
    assert "«" not in text


def test_counts_steps_and_warnings(recipe: Any, tmp_path: Path) -> None:
    text = shown(recipe(packing=False, max_length=64), tmp_path)
    assert "rows read: 9" in text
    assert "tokens: 135, of which targets 45 (33.3%); padding 76.6% of the sequences" in text
    assert "steps per epoch: 3, batches of 4 sequences of 64 tokens" in text
    assert "warning: train: 77% of the sequences is padding; set `data.packing: true`" in text


def test_evaluation_rows_are_shown_too(recipe: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "e.jsonl", [{"prompt": "z", "completion": "w"}] * 2)
    evaluation = {"files": ["e.jsonl"], "format": "prompt_completion"}
    text = shown(recipe(eval=evaluation), tmp_path)
    assert "eval, example 1 of 2: 4 tokens, 2 of them targets" in text
    assert "<bos> z «w» «<eos>»" in text
    assert "eval, example 2" not in text


def test_bad_data_are_a_users_error(recipe: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"prompt": 3, "completion": "a"}])
    with pytest.raises(UserError, match=r"a\.jsonl:1: field 'prompt' holds a number"):
        shown(recipe(), tmp_path)
