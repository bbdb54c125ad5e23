"""The rows that a recipe names: files found, and read one row at a time.

Memory stays bounded whatever the size of the files: one chunk, one row, and for Parquet one row
group's pages are held at once.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tunesmith.data.bad_rows import OnBad
from tunesmith.data.files import (
    READABLE,
    CutShort,
    DataFile,
    data_file,
    explained,
    filesystem_of,
    is_url,
    is_web,
)
from tunesmith.data.hub import dataset_of, split_files
from tunesmith.data.readers import read_csv, read_json, read_parquet, read_text
from tunesmith.data.types import Row
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Rows


@dataclass(frozen=True, slots=True)
class Found:
    """What `data.*.files` names.

    Attributes:
        files: in the order of the recipe, within a glob or folder by name.
        left_aside: names of files in globs and folders that are no data files.
    """

    files: list[DataFile]
    left_aside: list[str]


def read_rows(rows: Rows, base_dir: Path, on_bad: OnBad) -> Iterator[Row]:
    """Reads all rows of all files, in order; `limit` and `pick` are the caller's matter.

    A document of a .txt file comes as the field `rows.fields.text`.

    Args:
        rows: what to read.
        base_dir: where relative paths start.
        on_bad: told of each row that cannot be read; if it returns, reading goes on behind it.

    Raises:
        UserError: a file is missing, damaged, or of a kind that does not fit the format.
    """
    for file in find_files(rows, base_dir).files:
        yield from read_file(file, rows, on_bad)


def read_file(file: DataFile, rows: Rows, on_bad: OnBad) -> Iterator[Row]:
    """Reads the rows of one file, as `read_rows`."""
    count = 0
    try:
        for row in _reader(file, rows, on_bad):
            count += 1
            yield row
    except CutShort as cut:
        raise UserError(
            f"{file.name}: {cut}; it ends after row {count}", "Fetch or pack the file again."
        ) from cut


def _reader(file: DataFile, rows: Rows, on_bad: OnBad) -> Iterator[Row]:
    if file.kind == "txt":
        if rows.format != "text":
            raise UserError(
                f"{file.name}: a .txt file has no fields, format {rows.format} needs them",
                "Use `format: text`, or rows in .jsonl, .json, .csv or .parquet.",
            )
        return read_text(file, on_bad, separator=rows.separator, field=rows.fields.text)
    readers = {"jsonl": read_json, "json": read_json, "csv": read_csv, "parquet": read_parquet}
    return readers[file.kind](file, on_bad)


def find_files(rows: Rows, base_dir: Path) -> Found:
    """Expands the names, globs, folders and URLs of `rows.files`.

    Raises:
        UserError: something names no file, an unreadable kind, or a file for the second time.
    """
    base_dir = base_dir.absolute()
    files: dict[str, DataFile] = {}
    left_aside: list[str] = []
    for pattern in rows.files:
        paths = (
            _expand_url(pattern, rows.hub_split) if is_url(pattern) else _expand(pattern, base_dir)
        )
        chosen = {path: data_file(path, base_dir) for path in paths}
        left_aside += [os.path.basename(path) for path, file in chosen.items() if file is None]
        if not any(chosen.values()):
            names = ", ".join(os.path.basename(path) for path in paths[:5])
            found = f"only {names} found" if names else "the folder is empty"
            raise UserError(f"data files {pattern!r}: no data file; {found}", READABLE)
        for file in chosen.values():
            if file is not None and file.path in files:
                raise UserError(
                    f"{file.name} is named twice in `files`, the second time by {pattern!r}",
                    "Name each file once; to pass over rows more often, raise `train.epochs`.",
                )
            if file is not None:
                files[file.path] = file
    return Found(list(files.values()), left_aside)


def _expand(pattern: str, base_dir: Path) -> list[str]:
    """Absolute paths of the files that a local name, glob or folder stands for."""
    expanded = os.path.expanduser(pattern)
    path = Path(os.path.normpath(base_dir / expanded))
    if path.is_dir():
        return sorted(str(file) for file in path.rglob("*") if _is_visible_file(file, path))
    if path.is_file():
        return [str(path)]
    if glob.has_magic(expanded):
        matches = glob.iglob(expanded, root_dir=base_dir, recursive=True)
        paths = [os.path.normpath(base_dir / match) for match in matches]
        if found := sorted(match for match in paths if os.path.isfile(match)):
            return found
    folder = next(parent for parent in path.parents if parent.is_dir())
    # With a folder missing on the way, its name is what to look for.
    missing = path.relative_to(folder).parts[0]
    raise _no_match(pattern, missing, (entry.name for entry in folder.iterdir()), str(folder))


def _is_visible_file(file: Path, folder: Path) -> bool:
    return file.is_file() and not any(
        part.startswith(".") for part in file.relative_to(folder).parts
    )


def _expand_url(url: str, hub_split: str) -> list[str]:
    """URLs of the files that a URL, with a glob or of a folder, stands for."""
    if dataset := dataset_of(url):
        return split_files(dataset, hub_split)
    if is_web(url):  # the web has neither folders nor globs
        return [url]
    filesystem, path = filesystem_of(url)
    with explained(url):
        # `find` gives the files of a folder, and a file itself.
        found = filesystem.glob(path) if glob.has_magic(path) else filesystem.find(path)
        if not found:
            folder, _, name = path.rstrip("/").rpartition("/")
            siblings = filesystem.ls(folder, detail=False) if filesystem.isdir(folder) else []
            raise _no_match(url, name, map(os.path.basename, siblings), folder)
    return sorted(filesystem.unstrip_protocol(file) for file in found)


def _no_match(pattern: str, name: str, siblings: Iterable[str], folder: str) -> UserError:
    names = sorted(siblings)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
    holds = f"{folder} holds {', '.join(near)}" if near else f"{folder} is empty"
    if len(near) < len(names):
        holds += ", …"
    what = "matches no file" if glob.has_magic(pattern) else "no such file"
    return UserError(
        f"data files {pattern!r}: {what}; {holds}", "Paths start at the recipe's folder."
    )
