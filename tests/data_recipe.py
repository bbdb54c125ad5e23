"""Short ways to a recipe that reads data, and to its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunesmith.data.bad_rows import BadRow
from tunesmith.data.sources import read_rows
from tunesmith.data.types import Row
from tunesmith.recipe.schema import DataSection, ModelSection, Recipe, Rows, TrainSection


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
