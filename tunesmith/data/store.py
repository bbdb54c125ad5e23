"""Tokenised rows on disk.

Layout, version 1, in `<cache>/data/<fingerprint>/`; `.bin` files are flat and little-endian:

    meta.json                 version, max_length, statistics and number of bytes of each file
    train/, eval/             one side each; `eval` is there if the recipe evaluates
        tokens.bin            int32 [tokens]; the examples' ids one behind another
        targets.bin           bool [tokens]; whether the token is a target
        offsets.bin           int64 [examples + 1]; where each example starts in the two above
        rows.bin              int64 [examples]; number of the row that the example is (part) of
        members.bin           int64 [examples]; examples in the order of the sequences
        sequences.bin         int64 [sequences + 1]; where each sequence starts in members.bin
        sequence_targets.bin  int64 [sequences]; target tokens of each sequence
    eval/rows.jsonl           a row a line: {file, line, fields, prompt}; for tasks that generate

A directory is written under another name and renamed when whole, so it is whole or absent, and
processes that make it at the same time do not disturb each other. Nothing in it is ever changed.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.data.packing import Packing
from tunesmith.data.types import Encoded, EvalRow, Row, Where

VERSION = 1
_TYPES = {
    "tokens": "<i4",
    "targets": "?",
    "offsets": "<i8",
    "rows": "<i8",
    "members": "<i8",
    "sequences": "<i8",
    "sequence_targets": "<i8",
}


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of one side, see the module's text; read from disk as they are touched."""

    tokens: np.ndarray
    targets: np.ndarray
    offsets: np.ndarray
    rows: np.ndarray
    members: np.ndarray
    sequences: np.ndarray
    sequence_targets: np.ndarray


class SideWriter:
    """Writes one side: rows as they come, the packing at the end. 40 bytes an example are held.

    Attributes:
        target_tokens: in all examples.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._tokens = (directory / "tokens.bin").open("wb")
        self._targets = (directory / "targets.bin").open("wb")
        self._kept = None
        self._row_count = 0
        self._rows, self._lengths, self._target_counts = array("q"), array("q"), array("q")
        self._digests = bytearray()
        self.target_tokens = 0

    def add_row(self, examples: Sequence[Encoded]) -> None:
        """Adds the examples of the next row; more than one if the row was split."""
        for example in examples:
            ids, target = example.ids.astype("<i4").tobytes(), example.target.tobytes()
            self._tokens.write(ids)
            self._targets.write(target)
            self._rows.append(self._row_count)
            self._lengths.append(len(example.ids))
            self._target_counts.append(int(np.count_nonzero(example.target)))
            self.target_tokens += self._target_counts[-1]
            self._digests += hashlib.blake2b(ids + target, digest_size=8).digest()
        self._row_count += 1

    def keep(self, row: Row, prompt: np.ndarray) -> None:
        """Keeps what tasks that generate need of the row just added.

        Args:
            row: as read; values that JSON lacks become texts.
            prompt: int32 [T].
        """
        if self._kept is None:
            self._kept = (self._directory / "rows.jsonl").open("w", encoding="ascii")
        told = {"file": row.where.file, "line": row.where.line, "fields": row.fields}
        json.dump(told | {"prompt": prompt.tolist()}, self._kept, default=str)
        self._kept.write("\n")

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]; tokens of each."""
        return np.array(self._lengths, np.int64)

    @property
    def digests(self) -> np.ndarray:
        """uint64 [examples]; equal for examples with the same ids and targets."""
        return np.frombuffer(bytes(self._digests), np.uint64)

    def finish(self, packing: Packing) -> None:
        """Writes how the examples are packed, and closes the files."""
        counts = np.array(self._target_counts, np.int64)
        arrays = {
            "offsets": np.concatenate([[0], np.cumsum(self.lengths)]),
            "rows": np.array(self._rows, np.int64),
            "members": packing.members,
            "sequences": packing.offsets,
            "sequence_targets": np.add.reduceat(counts[packing.members], packing.offsets[:-1]),
        }
        for name, values in arrays.items():
            values.astype(_TYPES[name]).tofile(self._directory / f"{name}.bin")
        self.close()

    def close(self) -> None:
        """Closes the files, finished or not."""
        for file in (self._tokens, self._targets, self._kept):
            if file is not None:
                file.close()


def write_meta(directory: Path, told: dict[str, Any]) -> None:
    """Writes meta.json, last of all files."""
    sizes = {
        str(path.relative_to(directory)): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    text = json.dumps({"version": VERSION, "bytes": sizes} | told, indent=2, allow_nan=False)
    (directory / "meta.json").write_text(text + "\n", encoding="utf-8")


def read_meta(directory: Path) -> dict[str, Any] | None:
    """meta.json if the directory is whole, else None; looks at sizes alone, so it is quick."""
    try:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        sizes = meta["bytes"].items()
        whole = all((directory / name).stat().st_size == size for name, size in sizes)
    except (OSError, ValueError, KeyError):
        return None
    return meta if whole and meta["version"] == VERSION else None


def read_arrays(directory: Path) -> Arrays:
    """Maps one side's arrays into memory."""
    maps = {
        name: np.memmap(directory / f"{name}.bin", dtype, "r") for name, dtype in _TYPES.items()
    }
    # Plain views: slicing a memmap costs several times as much.
    return Arrays(**{name: np.asarray(mapped) for name, mapped in maps.items()})


def read_eval_rows(directory: Path) -> Iterator[EvalRow]:
    """The rows of a side, one at a time."""
    with (directory / "rows.jsonl").open(encoding="ascii") as file:
        for line in file:
            told = json.loads(line)
            where = Where(told["file"], told["line"])
            yield EvalRow(told["fields"], np.array(told["prompt"], np.int32), where)
