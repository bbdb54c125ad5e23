"""`tunesmith recipes list | show | copy | new | schema`.

These stand above the recipe itself because `new` reads the user's data.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.errors import UserError
from tunesmith.recipe.catalog import shipped, shipped_text
from tunesmith.recipe.new import Sample, propose

if TYPE_CHECKING:
    from tunesmith.data.bad_rows import BadRow
    from tunesmith.data.files import DataFile

Say = Callable[[str], object]

SAMPLE_ROWS = 500
SAMPLE_BYTES = 4 * 1024 * 1024
# What packed rows grow to, roughly; it only scales estimates.
GZIP_RATIO = 4


def list_recipes(say: Say = print) -> None:
    """Tell names and descriptions of the shipped recipes."""
    recipes = shipped()
    width = max(len(name) for name, _ in recipes)
    for name, description in recipes:
        say(f"{name:<{width}}  {description}")


def show_recipe(name: str, say: Say = print) -> None:
    """Tell a shipped recipe's YAML, comments included.

    Raises:
        UserError: no shipped recipe has this name.
    """
    say(shipped_text(name).rstrip("\n"))


def copy_recipe(name: str, to: str | None = None, say: Say = print) -> None:
    """Write a shipped recipe to a file, to be changed.

    Args:
        name: of a shipped recipe.
        to: file or existing folder; NAME.yaml here if absent.
        say: told what comes next.

    Raises:
        UserError: no such recipe, or the file exists or cannot be written.
    """
    path = Path(to) if to is not None else Path(f"{name}.yaml")
    if path.is_dir():
        path = path / f"{name}.yaml"
    _write_new(path, shipped_text(name))
    say(f"Wrote {path}. Relative data files in it start at {path.absolute().parent}.")


def write_schema(say: Say = print) -> None:
    """Tell the JSON schema of a recipe, for editors."""
    from tunesmith.recipe.schema import Recipe

    say(json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False))


def write_new_recipe(
    data: Sequence[str],
    to: str | None = None,
    *,
    name: str | None = None,
    model: str | None = None,
    say: Say = print,
) -> None:
    """Look at data, choose a recipe for it, and write it with the reasons.

    Args:
        data: files, globs, folders or URLs, as in `data.train.files`; relative to here.
        to: file to write, `-` to print instead; NAME.yaml here if absent.
        name: the recipe's name; from the data's if absent.
        model: Hub id, directory, GGUF file or `pypi:PACKAGE`; Gemma 3 270M if absent.
        say: told what comes next.

    Raises:
        UserError: the data cannot be read, no format fits it, or the file exists.
    """
    from tunesmith.recipe.load import parse_recipe

    folder = Path(to).absolute().parent if to not in (None, "-") else Path.cwd()
    text = new_recipe(data, name=name, model=model, folder=folder)
    if to == "-":
        say(text.rstrip("\n"))
        return
    path = Path(to or f"{parse_recipe(text, 'the new recipe').name}.yaml")
    _write_new(path, text)
    say(f"Wrote {path}. Next: `tunesmith inspect {path}`, then `tunesmith train {path}`.")


def new_recipe(
    data: Sequence[str],
    *,
    name: str | None = None,
    model: str | None = None,
    folder: Path | None = None,
) -> str:
    """The YAML of `write_new_recipe`.

    Args:
        data: as there.
        name: as there.
        model: as there.
        folder: where the recipe will lie, for its relative paths; here if absent.
    """
    if model is not None and (Path(model).is_dir() or Path(model).is_file()):
        model = str(Path(model).absolute())
    return propose(_sample(data, folder or Path.cwd()), name=name, model=model)


def _sample(data: Sequence[str], folder: Path) -> Sample:
    """The first rows of some files, and how much there is of them."""
    from tunesmith.data.sources import find_files, read_file
    from tunesmith.recipe.schema import Rows

    spec = Rows(files=list(data), format="text")
    files = find_files(spec, Path.cwd()).files
    names = [_seen_from(folder, name) for name in data]
    is_text = {file.kind == "txt" for file in files}
    if len(is_text) > 1:
        raise UserError(
            "text files and files of rows are not read by one format: "
            + ", ".join(file.name for file in files[:5]),
            "Name the ones or the others.",
        )
    size = sum(_size(file) for file in files)
    if is_text == {True}:
        text, is_all = _head(files[0])
        return Sample(names, [{"text": text}], True, is_all and len(files) == 1, size)
    bad: list[BadRow] = []
    every = itertools.chain.from_iterable(read_file(file, spec, bad.append) for file in files)
    rows: list[dict[str, Any]] = [row.fields for row in itertools.islice(every, SAMPLE_ROWS)]
    if bad and not rows:
        raise UserError(str(bad[0]), "No row can be read; correct them and try again.")
    doubts = [f"{len(bad)} rows seen cannot be read, the first: {bad[0]}."] if bad else []
    return Sample(names, rows, False, len(rows) < SAMPLE_ROWS, size, doubts)


def _head(file: DataFile) -> tuple[str, bool]:
    """The beginning of a text file, and whether that is all of it."""
    content = bytearray()
    for chunk in file.chunks():
        content += chunk
        if len(content) > SAMPLE_BYTES:
            # The end may lie within a character, and bad bytes are told where rows are read.
            return content[:SAMPLE_BYTES].decode("utf-8-sig", errors="replace"), False
    return content.decode("utf-8-sig", errors="replace"), True


def _size(file: DataFile) -> int:
    """Bytes of a file, unpacked; 0 if nobody tells."""
    from tunesmith.data.files import explained, filesystem_of, is_url

    if is_url(file.path):
        filesystem, path = filesystem_of(file.path)
        with explained(file.path):
            size = filesystem.info(path).get("size") or 0
    else:
        size = Path(file.path).stat().st_size
    return size * GZIP_RATIO if file.gzipped else size


def _seen_from(folder: Path, name: str) -> str:
    """A name relative to here as one relative to a folder, or absolute where it lies elsewhere."""
    if "://" in name or name.startswith("~"):
        return name
    path = Path(os.path.normpath(Path.cwd() / name))
    folder = Path(os.path.normpath(folder))
    return os.path.relpath(path, folder) if path.is_relative_to(folder) else str(path)


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path}: exists already", "Name another file, or remove it.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
