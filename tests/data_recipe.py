"""Short ways to data, recipes and their rows for the tests of the data path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tunesmith.data.bad_rows import BadRow
from tunesmith.data.dataset import PackedDataset
from tunesmith.data.sources import read_rows
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Row
from tunesmith.recipe.schema import DataSection, ModelSection, Recipe, Rows, TrainSection

TEXT = {"files": ["a.jsonl"], "format": "text"}
CHAT = {"files": ["a.jsonl"], "format": "chat"}


def data_recipe(*, batch_size: int = 4, **data: Any) -> Recipe:
    """A recipe of which only the data count; `train` and `eval` may be plain dictionaries."""
    for side in ("train", "eval"):
        if isinstance(data.get(side), dict):
            data[side] = Rows(**data[side])
    return Recipe(
        name="test",
        model=ModelSection(id="none"),
        data=DataSection(**data),
        train=TrainSection(learning_rate=1e-3, batch_size=batch_size),
    )


def rows_of(folder: Path, file: str, **options: Any) -> tuple[list[Row], list[BadRow]]:
    """All rows of a file, and the bad ones, as with `bad_rows: skip`."""
    bad: list[BadRow] = []
    rows = Rows(files=[file], **{"format": "text", **options})
    return list(read_rows(rows, folder, bad.append)), bad


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_texts(path: Path, texts: list[str]) -> None:
    """Writes rows with the one field `text` as JSONL."""
    write_rows(path, [{"text": text} for text in texts])


def chat_row(number: int, *, bad: bool = False) -> dict[str, Any]:
    """A conversation; a bad one has two user turns in a row."""
    question, answer = (
        {"role": "user", "content": f"q {number}"},
        {"role": "assistant", "content": "a"},
    )
    return {"messages": [question, question, answer] if bad else [question, answer]}


def contents(data: PackedDataset, tokenizer: Tokenizer) -> list[str]:
    """Texts of all examples, in the files' order."""
    return [tokenizer.decode(data.example(n).ids) for n in range(data.num_examples)]
