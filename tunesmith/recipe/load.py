"""A recipe's name or file to a checked `Recipe`, and back to YAML.

Everything wrong with a recipe is told at once, each thing with its place. The libraries for it are
imported when a recipe is loaded, so that `tunesmith --help` stays quick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.errors import UserError
from tunesmith.recipe.catalog import shipped_names, shipped_text

if TYPE_CHECKING:
    from tunesmith.recipe.parse import KeyPath, Tree
    from tunesmith.recipe.schema import Recipe

MAX_BYTES = 1024 * 1024

_INDEX = re.compile(r"[0-9]{1,6}")
_PLAIN_TEXT = re.compile(r"[A-Za-z_](?:[\w./+-]|:(?=/))*", re.ASCII)
# What YAML 1.2 (https://yaml.org/spec/1.2.2/#51-character-set) lets stand in a text, without the
# characters that are taken for line ends or a byte order mark.
_NOT_PRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and where it came from.

    Attributes:
        recipe: checked, overrides included.
        base_dir: where its relative paths start: the file's folder or, for a shipped recipe, the
            folder where tunesmith was started.
        path: the file; None for a shipped recipe.
        text: the YAML as written, without the overrides.
    """

    recipe: Recipe
    base_dir: Path
    path: Path | None
    text: str


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load a shipped recipe by name, or a YAML file.

    Args:
        name_or_path: a name of `tunesmith recipes list`, or a file.
        overrides: `a.b=VALUE`, VALUE in YAML; later ones win. `a.b[0]=` or `a.b.0=` reaches into a
            list (the index after its last item appends), and VALUE may be a whole section.

    Raises:
        UserError: no such recipe, not YAML, or values that do not fit; all of them at once.
    """
    name = str(name_or_path)
    if name in shipped_names():
        text = shipped_text(name)
        recipe = parse_recipe(text, f"{name}.yaml (shipped)", overrides)
        return LoadedRecipe(recipe, Path.cwd(), None, text)
    path = Path(name_or_path)
    text = _read(path)
    return LoadedRecipe(parse_recipe(text, name, overrides), path.absolute().parent, path, text)


def parse_recipe(text: str, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Check YAML text against the schema; `source` names it in messages.

    Raises:
        UserError: as `load_recipe`.
    """
    from pydantic import ValidationError

    from tunesmith.recipe.explain import explain, given
    from tunesmith.recipe.parse import parse_yaml
    from tunesmith.recipe.schema import Recipe

    tree = parse_yaml(text, source)
    if tree.value is None:
        raise UserError(f"{source}: is empty", "`tunesmith recipes new --data FILE` writes one.")
    if not isinstance(tree.value, dict):
        raise UserError(
            f"{source}: a recipe is keys and values, and this is {given(tree.value)}",
            "`tunesmith recipes show demo` shows a whole one.",
        )
    for override in overrides:
        _apply(override, tree)
    try:
        recipe = Recipe.model_validate(tree.value)
        problems = tree.problems
    except ValidationError as error:
        problems = tree.problems + explain(error, tree)
    if not problems:
        return recipe
    problems.sort(key=lambda p: (p.place.source != source, p.place.line or 0))
    if len(problems) == 1:
        raise UserError(str(problems[0]), "`tunesmith recipes schema` describes every key.")
    told = "".join(f"\n  {problem}" for problem in problems)
    raise UserError(
        f"{source}: {len(problems)} things are wrong:{told}",
        "`tunesmith recipes schema` describes every key.",
    )


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as YAML that loads back equal."""
    return "".join(_yaml_lines(recipe.model_dump(), ""))


def diff_recipes(old: Recipe, new: Recipe) -> list[str]:
    """What changed, a line each, as `train.learning_rate: 2e-5 -> 1e-4`."""
    return list(_differences(old.model_dump(), new.model_dump(), ""))


def _read(path: Path) -> str:
    """The text of a recipe file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(path) from None
    except IsADirectoryError:
        inside = sorted(p.name for p in path.glob("*.y*ml"))[:3]
        raise UserError(
            f"{path}: is a folder, not a recipe",
            f"Give the file in it: {', '.join(str(path / name) for name in inside)}."
            if inside
            else "Give a YAML file or a name from `tunesmith recipes list`.",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise UserError(f"{str(path)!r}: cannot be read: {error}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; is it a recipe?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not UTF-8 text (byte {error.start} is 0x{content[error.start]:02x})",
            "A recipe is a YAML file; save it as UTF-8.",
        ) from None
    if "\0" in text:
        raise UserError(f"{path}: is a binary file, not a recipe")
    return text


def _not_found(path: Path) -> UserError:
    from tunesmith.recipe.explain import nearest

    names = shipped_names()
    near = nearest(path.stem, names)
    hint = f"Shipped recipes: {', '.join(names)}."
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return UserError(f"{path}: no such file", hint)
    return UserError(
        f"no recipe is called {str(path)!r}, and no file either"
        + (f"; did you mean {near}?" if near else ""),
        hint,
    )


def _apply(override: str, tree: Tree) -> None:
    """Write one `a.b=VALUE` into the tree; what is wrong with it joins the tree's problems."""
    from textwrap import indent

    from tunesmith.recipe.parse import Place, Problem, check_text, parse_yaml

    check_text(override, Place("--set"))
    key, equals, text = override.partition("=")
    source = f"--set {key.strip()}"
    steps = key.strip().replace("[", ".").replace("]", "").split(".")
    if not equals or not all(steps):
        wrong = "has no value" if all(steps) else "is not a path of keys"
        problem = f"{wrong}; write --set train.learning_rate=1e-4"
        tree.problems.append(Problem(Place(source), "", problem))
        return
    # Indented, a value such as `---` is the text that it looks like, not the mark of a document.
    value = parse_yaml(indent(text, " "), source, has_lines=False)
    tree.problems += value.problems
    try:
        path = _put(tree.value, steps, value.value)
    except _NoSuchPlace as error:
        tree.problems.append(Problem(Place(source), "", str(error)))
        return
    tree.places = {at: p for at, p in tree.places.items() if at[: len(path)] != path}
    for depth in range(1, len(path) + 1):
        tree.places.setdefault(path[:depth], Place(source))


class _NoSuchPlace(Exception):
    """An override goes where the recipe has no place for a value."""


def _put(root: dict[str, Any], steps: list[str], value: Any) -> KeyPath:
    """Set a value below `root`, with the sections that are missing on the way; gives its path."""
    container: Any = root
    path: KeyPath = ()
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        index = _index(container, step, ".".join(steps[:number]), may_append=last)
        path = (*path, index)
        if last:
            container[index] = value
        elif container[index] is None:
            container[index] = [] if _INDEX.fullmatch(steps[number + 1]) else {}
        container = container[index]
    return path


def _index(container: Any, step: str, name: str, *, may_append: bool) -> str | int:
    """Where in a section or list a step leads; the place is made if it is missing."""
    if isinstance(container, dict):
        container.setdefault(step, None)
        return step
    if not isinstance(container, list):
        raise _NoSuchPlace(f"`{name}` is a value and has no parts")
    count = len(container)
    if not _INDEX.fullmatch(step) or int(step) >= count + may_append:
        raise _NoSuchPlace(f"`{name}` is a list of {count}, counted from 0; it has no `{step}`")
    if int(step) == count:
        container.append(None)
    return int(step)


def _number(value: float) -> str:
    """Shortest form that reads back equal, small ones as `2e-5` rather than `2e-05`."""
    return f"{Decimal(repr(value)):e}" if 0 < abs(value) < 1e-2 else repr(value)


def _yaml_lines(section: dict[str, Any], margin: str) -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield f"{margin}{key}:\n"
            yield from _yaml_lines(value, margin + "  ")
        else:
            yield f"{margin}{key}: {yaml_value(value)}\n"


def yaml_value(value: Any) -> str:
    """A plain value or a list of them on one line of YAML; texts in quotes where they need them."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return f"[{', '.join(yaml_value(item) for item in value)}]"
    if isinstance(value, str):
        plain = _PLAIN_TEXT.fullmatch(value) and value.lower() not in (
            "null",
            "true",
            "false",
        )
        return value if plain else _quoted(value)
    return str(value)


def _quoted(text: str) -> str:
    """In double quotes: JSON's are YAML's, but YAML wants more characters escaped than JSON."""
    return _NOT_PRINTABLE.sub(
        lambda match: f"\\U{ord(match[0]):08x}", json.dumps(text, ensure_ascii=False)
    )


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) or isinstance(new, dict):
        old, new = old or {}, new or {}
        for key in {**old, **new}:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield f"{path}: {yaml_value(old)} -> {yaml_value(new)}"
