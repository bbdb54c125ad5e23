"""metrics.jsonl: one schema for both engines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tunesmith.runs.rundir import write_text
from tunesmith.runs.tensorboard import EventFiles


@dataclass(frozen=True, slots=True)
class Line:
    """One line. Figures that do not apply are null.

    Attributes:
        kind: "train" or "eval".
        step: optimizer steps done so far.
        loss: nats per target token.
        learning_rate: of this step.
        grad_norm: global norm before clipping.
        tokens: tokens of this step, padding left out.
        target_tokens: tokens with a loss.
        step_seconds: from the step's start to its result.
        wait_seconds: of these, spent waiting for data.
        execution_accuracy, exact_match: of generated SQL, as shares.
        time: seconds since 1970.
    """

    kind: Literal["train", "eval"]
    step: int
    loss: float
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    target_tokens: int | None = None
    step_seconds: float | None = None
    wait_seconds: float | None = None
    execution_accuracy: float | None = None
    exact_match: float | None = None
    time: float | None = None


class MetricsLog:
    """Appends lines to a run's metrics.jsonl; only one process of a run writes.

    Args:
        path: the file.
        writes: whether this process does.
        board: takes the same lines for TensorBoard.
    """

    def __init__(self, path: Path, *, writes: bool = True, board: EventFiles | None = None) -> None:
        self._path, self._writes = path, writes
        self._board = board if writes else None

    def append(self, line: Line) -> None:
        """Add a line and hand it to the operating system at once."""
        if not self._writes:
            return
        record = asdict(line) | {"time": round(line.time or time.time(), 3)}
        record = {k: None if _not_finite(v) else v for k, v in record.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
        if self._board is not None:
            self._board.add(record)

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`, and a line cut short, before a run goes on from there."""
        kept: list[dict[str, Any]] = []
        if self._writes and self._path.exists():
            kept = [record for record in read_metrics(self._path) if record["step"] <= step]
            write_text(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        if self._board is not None:
            self._board.restart(kept)

    def close(self) -> None:
        """Write what TensorBoard's files still wait for."""
        if self._board is not None:
            self._board.close()


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line cut short by a crash is left out."""
    with path.open(encoding="utf-8") as file:
        for text in file:
            try:
                yield json.loads(text)
            except ValueError:
                return
