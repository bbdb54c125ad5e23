"""What is wrong with a recipe's values, in plain words and with their place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from inspect import isclass
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tunesmith.recipe.parse import KeyPath, Problem, Tree, dotted
from tunesmith.recipe.schema import BrokenRules, Recipe, Section


def explain(error: ValidationError, tree: Tree) -> list[Problem]:
    """Turn pydantic's errors into problems with the place in the tree that was validated."""
    problems = []
    details = error.errors(include_url=False)
    misspelt = {
        (*d["loc"][:-1], near)
        for d in details
        if d["type"] == "extra_forbidden" and (near := _nearest_in_section(d["loc"]))
    }
    for detail in details:
        path = detail["loc"]
        if detail["type"] == "missing" and path in misspelt:
            continue  # told once, as an unknown key with its nearest
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, BrokenRules):
            for field, text in cause.rules:
                rule_path = (*path, *field.split("."))
                problems.append(Problem(tree.place(rule_path), dotted(rule_path), text))
        else:
            problems.append(Problem(tree.place(path), dotted(path), _in_words(detail)))
    return problems


def section_at(path: KeyPath) -> type[Section] | None:
    """The section that a path leads to; None if it leads to a plain value or nowhere."""
    section: type[Section] | None = Recipe
    for step in path:
        field = section.model_fields.get(str(step)) if section else None
        if field is None:
            return None
        section = _section_of(field)
    return section


def fields(section: type[Section] = Recipe, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field of the recipe with its dotted path, sections included, in reading order."""
    for name, field in section.model_fields.items():
        yield prefix + name, field
        if inner := _section_of(field):
            yield from fields(inner, f"{prefix}{name}.")


def _section_of(field: FieldInfo) -> type[Section] | None:
    for kind in (field.annotation, *get_args(field.annotation)):
        if isclass(kind) and issubclass(kind, Section):
            return kind
    return None


def nearest(word: str, words: list[str]) -> str | None:
    """The word that was most likely meant."""
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return close[0] if close else None


def _nearest_in_section(path: KeyPath) -> str | None:
    section = section_at(path[:-1])
    return nearest(str(path[-1]), list(section.model_fields)) if section else None


def _unknown_key(path: KeyPath) -> str:
    key = str(path[-1])
    name = dotted(path[:-1])
    if near := _nearest_in_section(path):
        return f"no such key; did you mean `{near}`?"
    elsewhere = [field for field, _ in fields() if field.rpartition(".")[2] == key]
    if elsewhere:
        return "no such key here; did you mean " + " or ".join(f"`{f}`" for f in elsewhere) + "?"
    section = section_at(path[:-1])
    known = ", ".join(f"`{name}`" for name in section.model_fields) if section else "none"
    return f"no such key; {f'`{name}`' if name else 'a recipe'} has {known}"


def given(value: Any) -> str:
    """A value as the reader of a message would name it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = value if len(value) <= 60 else value[:57] + "..."
        return f"the text {shown!r}"
    if isinstance(value, dict):
        return "keys and values" if value else "{}"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return repr(value)


def _in_words(detail: ErrorDetails) -> str:
    """One of pydantic's errors (https://docs.pydantic.dev/latest/errors/validation_errors)."""
    kind = detail["type"]
    value = detail["input"]
    context = detail.get("ctx", {})
    if kind == "missing":
        return "required, and missing"
    if kind == "extra_forbidden":
        return _unknown_key(detail["loc"])
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = nearest(value, choices) if isinstance(value, str) else None
        return f"expected one of {', '.join(choices)}; given {given(value)}" + (
            f"; did you mean {near}?" if near else ""
        )
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return (
            "expected lower-case letters, digits and hyphens, 40 at most, no hyphen at either end; "
            f"given {given(value)}"
        )
    expected = {
        "model_type": "keys and values under it",
        "dict_type": "keys and values under it",
        "list_type": "a list",
        "string_type": "a text",
        "bool_type": "true or false",
        "int_type": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "greater_than": f"a number above {context.get('gt', 0):g}",
        "greater_than_equal": f"at least {context.get('ge', 0):g}",
        "less_than": f"a number below {context.get('lt', 0):g}",
        "less_than_equal": f"at most {context.get('le', 0):g}",
        "too_short": f"at least {context.get('min_length')} item",
    }.get(kind)
    if expected is None:
        return f"{detail['msg']}; given {given(value)}"
    return f"expected {expected}, given {given(value)}{_remedy(kind, value)}"


def _remedy(kind: str, value: Any) -> str:
    """What to write instead, where the value gives away what was meant."""
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return "; put it in quotes"
    if kind == "string_type" and isinstance(value, dict):
        return "; a text that starts with { needs quotes"
    if kind == "list_type" and isinstance(value, str):
        return f"; write [{value}]" if len(value) <= 60 else "; put it in [ ]"
    if kind in ("int_type", "float_type") and isinstance(value, str) and _is_number(value):
        return "; remove the quotes"
    if kind in ("model_type", "dict_type") and value is None:
        return "; add some or remove the line"
    if kind in ("model_type", "dict_type") and isinstance(value, str):
        glued = re.match(r"([\w-]+):\S", value)
        return f"; a space is missing after `{glued[1]}:`" if glued else ""
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
