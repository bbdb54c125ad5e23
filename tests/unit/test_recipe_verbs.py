"""`tunesmith recipes list | show | copy | schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunesmith.errors import UserError
from tunesmith.recipe.catalog import shipped_text
from tunesmith.recipe.load import load_recipe
from tunesmith.recipe_verbs import copy_recipe, list_recipes, show_recipe, write_schema


def test_list_names_and_describes() -> None:
    said: list[str] = []
    list_recipes(said.append)
    assert said[0] == (
        "demo                     Gemma 3 270M learns text-to-SQL on a laptop CPU, without any "
        "account"
    )
    assert len(said) == 4


def test_show_keeps_the_comments() -> None:
    said: list[str] = []
    show_recipe("demo", said.append)
    assert said == [shipped_text("demo").rstrip("\n")]
    assert said[0].startswith("# ")


def test_show_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean text-to-sql-gemma3-270m") as raised:
        show_recipe("text-to-sql-gemma3-270")
    assert "tinystories-gemma3-270m" in str(raised.value.hint)


def test_copy_can_be_loaded_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    copy_recipe("demo", say=said.append)
    assert said == [f"Wrote demo.yaml. Relative data files in it start at {tmp_path}."]
    assert load_recipe("demo.yaml").recipe == load_recipe("demo").recipe
    with pytest.raises(UserError, match=r"demo.yaml: exists already"):
        copy_recipe("demo")
    (tmp_path / "sub").mkdir()
    copy_recipe("demo", "sub", said.append)
    copy_recipe("demo", "other.yml", said.append)
    assert (tmp_path / "sub" / "demo.yaml").read_text() == shipped_text("demo")
    assert (tmp_path / "other.yml").read_text() == shipped_text("demo")
    with pytest.raises(UserError, match=r"no/where.yaml: cannot be written: No such file"):
        copy_recipe("demo", "no/where.yaml")


def test_schema_is_json_with_descriptions() -> None:
    said: list[str] = []
    write_schema(said.append)
    schema = json.loads(said[0])
    rate = schema["$defs"]["TrainSection"]["properties"]["learning_rate"]
    assert rate == {
        "description": "Peak learning rate.",
        "exclusiveMinimum": 0.0,
        "title": "Learning Rate",
        "type": "number",
    }
