"""The schema as documentation, and its rules."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from tunesmith.recipe.explain import fields, section_at
from tunesmith.recipe.schema import DataSection, Optimizer, Recipe, Rows, TrainSection


def test_every_field_is_described() -> None:
    bare = [path for path, field in fields() if not field.description]
    assert bare == []


def test_descriptions_name_fields_that_exist() -> None:
    known = {path for path, _ in fields()}
    sections = {path.partition(".")[0] for path in known if "." in path}
    for path, field in fields():
        for name in re.findall(r"`([a-z_]+\.[a-z_.]+)`", field.description or ""):
            if name.partition(".")[0] in sections:
                assert name in known, f"{path} speaks of {name}"


def test_json_schema_describes_every_key_and_forbids_others() -> None:
    schema = Recipe.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    assert len(parts) > 15
    for part in parts:
        assert part["additionalProperties"] is False, part["title"]
        for name, key in part["properties"].items():
            assert key.get("description"), f"{part['title']}.{name}"


def test_section_at_follows_optional_sections() -> None:
    assert section_at(()) is Recipe
    assert section_at(("train", "optimizer")) is Optimizer
    assert section_at(("data", "eval")) is Rows
    assert section_at(("train", "learning_rate")) is None
    assert section_at(("nothing", "there")) is None


def test_values_are_never_coerced() -> None:
    for value in ("1e-4", True, [1e-4]):
        with pytest.raises(ValidationError):
            TrainSection(learning_rate=value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValidationError):
        TrainSection(learning_rate=1e-4, batch_size=8.0)  # pyright: ignore[reportArgumentType]


def test_evaluation_rows_come_from_one_place() -> None:
    rows = {"files": ["a.jsonl"], "format": "chat"}
    with pytest.raises(ValidationError, match="`eval` and `holdout` exclude each other"):
        DataSection.model_validate({"train": rows, "eval": rows, "holdout": {"rows": 1}})
    with pytest.raises(ValidationError, match="exactly one of `rows` and `fraction`"):
        DataSection.model_validate({"train": rows, "holdout": {}})
