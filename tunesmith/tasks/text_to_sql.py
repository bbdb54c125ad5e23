"""Score text-to-SQL answers by running them, and by exact match after normalisation.

Execution accuracy counts an answer as right if it gives the gold query's rows: as a multiset, or in
order where the gold query has an ORDER BY of its own. Columns are compared by position, their names
are ignored, and numbers may differ by 1e-6 of their size. Where rows tie in what ORDER BY sorts
by, SQL leaves their order, and with LIMIT their choice, open: an answer that breaks the tie
otherwise than gold counts as wrong, so gold queries had better not tie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tunesmith.tasks.sql_sandbox import Cell, Result, Rows, SetupError, SqlSandbox
from tunesmith.tasks.sql_text import extract_statement, has_top_level_order, names, normalized

Status = Literal["right", "wrong_result", "failed", "empty", "timeout", "not_measurable"]

# Worst first: what a reader of the report wants to look at.
_WORST_FIRST: tuple[Status, ...] = (
    "empty",
    "failed",
    "timeout",
    "wrong_result",
    "not_measurable",
    "right",
)
_NOT_SQLITE = ("syntax error", "unrecognized token", "incomplete input", "no such function")


@dataclass(frozen=True)
class SqlItem:
    """One question's gold query and the model's answer.

    Attributes:
        id: names the item in the report, such as its line in the data file.
        context: the schema text shown to the model.
        gold: the right query.
        prediction: the model's answer as it came; its first statement is scored.
        setup: statements that build and fill the database; the context where there are none.
    """

    id: str
    context: str
    gold: str
    prediction: str
    setup: str | None = None


@dataclass(frozen=True)
class SqlOutcome:
    """How one answer fared; `reason` says what went wrong, or why it cannot be measured."""

    id: str
    status: Status
    exact_match: bool
    gold: str
    statement: str
    reason: str | None = None


@dataclass(frozen=True)
class SqlReport:
    """The outcomes of a set of answers, in the order of the items."""

    outcomes: tuple[SqlOutcome, ...]

    @property
    def total(self) -> int:
        """How many answers there are."""
        return len(self.outcomes)

    @property
    def counts(self) -> dict[Status, int]:
        """How many answers ended in each status; every status is there."""
        counted = Counter(outcome.status for outcome in self.outcomes)
        return {status: counted[status] for status in _WORST_FIRST}

    @property
    def not_measurable(self) -> dict[str, int]:
        """How many items have no answer to compare with, by reason."""
        reasons = (o.reason for o in self.outcomes if o.status == "not_measurable")
        return dict(Counter(str(reason) for reason in reasons))

    @property
    def measurable(self) -> int:
        """How many items have a gold result to compare with."""
        return self.total - self.counts["not_measurable"]

    @property
    def correct(self) -> int:
        """How many answers give gold's result."""
        return self.counts["right"]

    @property
    def execution_accuracy(self) -> float | None:
        """`correct / measurable`; None where nothing is measurable."""
        return self.correct / self.measurable if self.measurable else None

    @property
    def exact_match(self) -> float | None:
        """The share of all items whose statement equals gold after normalisation."""
        if not self.outcomes:
            return None
        return sum(outcome.exact_match for outcome in self.outcomes) / self.total

    def worst_first(self) -> list[SqlOutcome]:
        """The outcomes with failures first and right answers last, otherwise in order."""
        return sorted(self.outcomes, key=lambda outcome: _WORST_FIRST.index(outcome.status))

    def to_json(self) -> dict[str, Any]:
        """The figures and every outcome, for a report file."""
        return {
            "total": self.total,
            "measurable": self.measurable,
            "not_measurable": self.not_measurable,
            "correct": self.correct,
            "execution_accuracy": self.execution_accuracy,
            "exact_match": self.exact_match,
            "counts": self.counts,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
        }


def score(
    items: Iterable[SqlItem], *, max_rows: int = 10_000, max_seconds: float = 2.0
) -> SqlReport:
    """Run every item's gold query and answer on its own database and compare the results.

    An item whose gold query gives nothing to compare with is counted as not measurable, with the
    reason, and never as right.

    Args:
        items: taken one at a time.
        max_rows: a query that gives more rows fails.
        max_seconds: processor time for each query.
    """
    return SqlReport(tuple(_score_item(item, max_rows, max_seconds) for item in items))


def same_result(gold: Rows, answer: Rows, *, ordered: bool) -> bool:
    """Whether two results are equal: row by row if `ordered`, otherwise as multisets of rows."""
    if len(gold) != len(answer):
        return False
    if not ordered:
        gold, answer = _sorted_rows(gold), _sorted_rows(answer)
    return all(
        len(left) == len(right) and all(map(_same_cell, left, right))
        for left, right in zip(gold, answer, strict=True)
    )


def _score_item(item: SqlItem, max_rows: int, max_seconds: float) -> SqlOutcome:
    statement = extract_statement(item.prediction)
    known = names(item.context)
    exact = bool(statement) and normalized(statement, known) == normalized(item.gold, known)

    def outcome(status: Status, reason: str | None = None) -> SqlOutcome:
        return SqlOutcome(item.id, status, exact, item.gold, statement, reason)

    setup = item.setup or item.context
    try:
        with SqlSandbox(setup, max_rows=max_rows, max_seconds=max_seconds) as sandbox:
            if not sandbox.has_rows():
                return outcome("not_measurable", "no rows in context")
            gold = sandbox.query(item.gold)
            if reason := _unusable_gold(gold):
                return outcome("not_measurable", reason)
            if not statement:
                return outcome("empty", "no statement in the answer")
            answer = sandbox.query(statement)
    except SetupError:
        return outcome("not_measurable", "context does not run")
    if answer.status != "done":
        return outcome(answer.status, answer.error)
    if same_result(gold.rows, answer.rows, ordered=has_top_level_order(item.gold)):
        return outcome("right")
    return outcome("wrong_result", _difference(gold.rows, answer.rows))


def _unusable_gold(gold: Result) -> str | None:
    if gold.status != "done":
        error = gold.error or ""
        return "gold is not SQLite" if any(m in error for m in _NOT_SQLITE) else "gold fails"
    if all(cell is None for row in gold.rows for cell in row):
        return "gold returns nothing"  # an aggregate over no rows is a row of NULLs
    return None


def _difference(gold: Rows, answer: Rows) -> str:
    if len(gold) != len(answer):
        return f"{len(answer)} rows, gold has {len(gold)}"
    if len(gold[0]) != len(answer[0]):
        return f"{len(answer[0])} columns, gold has {len(gold[0])}"
    return "other values, or another order"


def _same_cell(left: Cell, right: Cell) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)
    return type(left) is type(right) and left == right


def _sorted_rows(rows: Rows) -> Rows:
    """Rows in an order in which equal results line up despite rounding noise.

    Numbers are looked at last and to nine digits, so that noise in one cannot move its row past
    rows that differ in something else.
    """

    def key(row: tuple[Cell, ...]) -> tuple[Any, ...]:
        kinds = [_kind(cell) for cell in row]
        texts = [cell for cell in row if isinstance(cell, str)]
        blobs = [cell for cell in row if isinstance(cell, bytes)]
        numbers = [float(f"{cell:.9g}") for cell in row if isinstance(cell, int | float)]
        return kinds, texts, blobs, numbers

    return tuple(sorted(rows, key=key))


def _kind(cell: Cell) -> int:
    if cell is None:
        return 0
    return 1 if isinstance(cell, int | float) else 2 if isinstance(cell, str) else 3
