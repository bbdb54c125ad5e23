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
    """Appends lines to a run's metrics.jsonl; only one process of a run writes."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self._path, self._writes = path, writes

    def append(self, line: Line) -> None:
        """Add a line and hand it to the operating system at once."""
        if not self._writes:
            return
        record = asdict(line) | {"time": round(line.time or time.time(), 3)}
        record = {k: None if _not_finite(v) else v for k, v in record.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`, and a line cut short, before a run goes on from there."""
        if self._writes and self._path.exists():
            kept = [json.dumps(r) for r in read_metrics(self._path) if r["step"] <= step]
            write_text(self._path, "".join(line + "\n" for line in kept))


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
