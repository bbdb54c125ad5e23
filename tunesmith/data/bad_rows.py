"""Rows that cannot be used: stop with all the places at hand, or leave them out and count them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tunesmith.data.types import Where
from tunesmith.errors import UserError

PLACES_SHOWN = 5
LOOK_AHEAD_ROWS = 1000  # rows still checked after the first bad one, to name several at once


class BadRow(Exception):
    """One row that cannot be used.

    Args:
        where: its place.
        kind: what is wrong in two or three words, the same for all rows of the kind: counted by it.
        detail: what is wrong with this one, field and value named.
    """

    def __init__(self, where: Where, kind: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}")
        self.where = where
        self.kind = kind
        self.detail = detail


OnBad = Callable[[BadRow], None]


@dataclass(slots=True)
class Skipped:
    """Rows left out for one reason: how many, and the first places."""

    count: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        """Counts one more row."""
        self.count += 1
        if len(self.places) < PLACES_SHOWN:
            self.places.append(place)


class BadRows:
    """What happens to bad rows, and the count of them.

    `by_kind` holds the counts. With `policy="stop"`, `add` raises UserError as soon as PLACES_SHOWN
    rows are known; `check` raises for fewer, and is called after each good row and at the end.
    """

    def __init__(self, policy: Literal["stop", "skip"]) -> None:
        self.policy = policy
        self.by_kind: dict[str, Skipped] = {}
        self._first: list[BadRow] = []
        self._rows_since = 0

    @property
    def count(self) -> int:
        """Bad rows of all kinds."""
        return sum(skipped.count for skipped in self.by_kind.values())

    @property
    def stopping(self) -> bool:
        """Whether a bad row was met that ends the run."""
        return self.policy == "stop" and bool(self._first)

    def add(self, bad: BadRow) -> None:
        """Counts a bad row, or stops."""
        self.by_kind.setdefault(bad.kind, Skipped()).add(str(bad))
        if len(self._first) < PLACES_SHOWN:
            self._first.append(bad)
        if self.policy == "stop" and self.count >= PLACES_SHOWN:
            self.check(at_end=True)

    def check(self, *, at_end: bool = False) -> None:
        """Raises UserError if a bad row must stop the run and enough rows were looked at."""
        if not self.stopping:
            return
        self._rows_since += 1
        if at_end or self._rows_since >= LOOK_AHEAD_ROWS:
            raise UserError(
                "\n  ".join(str(bad) for bad in self._first),
                "Correct the rows, or set `data.bad_rows: skip` to leave them out and count them.",
            )


def described(value: Any) -> str:
    """A value's kind and a glimpse of it, for messages."""
    kinds = {
        str: "text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    kinds |= {list: "a list", dict: "an object", bytes: "bytes"}
    kind = kinds.get(type(value), type(value).__name__)
    return kind if value is None or isinstance(value, (list, dict)) else f"{kind} ({value!r:.40})"
