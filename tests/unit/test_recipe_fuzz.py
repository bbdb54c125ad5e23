"""Whatever is written in a recipe, a user reads a message, never a traceback."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tunesmith.errors import UserError
from tunesmith.recipe.catalog import shipped_names, shipped_text
from tunesmith.recipe.explain import fields
from tunesmith.recipe.load import dump_recipe, load_recipe, parse_recipe
from tunesmith.recipe.schema import Recipe

KEYS = sorted({path.rpartition(".")[2] for path, _ in fields()})
PATHS = [path for path, _ in fields()]
ODD = ["*a", "&a", "!!int", "{", "[", "]", "- ", ": ", "#", "|", ">", "'", '"', "---", "%YAML 3.0"]
ODD += [
    "\t",
    "\n",
    "\n  ",
    "\\",
    "\0",
    "\x85",
    "\u2028",
    "\ud800",
    "\ufeff",
    '"\\UFFFFFFFF"',
    "<<: ",
]
ODD += ["9" * 5000, "0x" + "f" * 500, "1e999", ".nan", "null", "true", "1e-4", "2024-01-31", "? "]

pieces = st.sampled_from(KEYS) | st.sampled_from(ODD) | st.text(max_size=5)
layout = st.sampled_from([": ", "\n", "\n  ", "\n    - "])
yamlish = st.lists(pieces | layout, max_size=40).map("".join)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
calm = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def gives_a_recipe_or_a_message(text: str, overrides: list[str]) -> None:
    message = ""
    try:
        recipe = parse_recipe(text, "my.yaml", overrides)
    except UserError as error:
        message = str(error)
    else:
        assert isinstance(recipe, Recipe)
        assert parse_recipe(dump_recipe(recipe), "dumped") == recipe
    assert "Input should" not in message, "pydantic's own words"


@calm
@example('a: "\\UFFFFFFFF"')
@example("a: &a [*a]")
@example("%TAG ! x\n---\na")
@example("? - a\n: b")
@example("a: !t\n")
@given(yamlish)
def test_any_text(text: str) -> None:
    gives_a_recipe_or_a_message(text, [])


@calm
@given(st.sampled_from(shipped_names()), st.data())
def test_a_shipped_recipe_with_damage(name: str, data: st.DataObject) -> None:
    text = shipped_text(name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 20, len(text))))
    gives_a_recipe_or_a_message(text[:start] + data.draw(yamlish) + text[end:], [])


@calm
@given(st.sampled_from(PATHS), values)
def test_any_value_for_any_key(path: str, value: object) -> None:
    recipe = shipped_text("demo")
    text = repr(value).replace("None", "null") if isinstance(value, (dict, list)) else str(value)
    gives_a_recipe_or_a_message(recipe, [f"{path}={text}"])


@calm
@given(st.lists(pieces | st.sampled_from(PATHS) | st.sampled_from([".", "[0]", "="])).map("".join))
def test_any_override(override: str) -> None:
    gives_a_recipe_or_a_message(shipped_text("demo"), [override])


@calm
@given(st.text(max_size=20) | st.sampled_from(ODD))
def test_any_name(name: str) -> None:
    with pytest.raises(UserError):
        load_recipe(name + "?")
