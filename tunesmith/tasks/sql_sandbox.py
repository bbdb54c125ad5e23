"""Run a model's SQL without trusting it: in memory, read-only, bounded in time, rows and memory."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from tunesmith.tasks.sql_text import first_word

Cell = None | int | float | str | bytes
Rows = tuple[tuple[Cell, ...], ...]

_CHECK_EVERY = 1000  # SQLite instructions between two looks at the clock
_MAX_VALUE_BYTES = 100_000  # one string, blob or row: keeps every single instruction short
_MAX_RESULT_BYTES = 16 * 2**20
_MAX_HEAP_BYTES = 256 * 2**20

_QUERY_ACTIONS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_SETUP_ACTIONS = _QUERY_ACTIONS | {
    sqlite3.SQLITE_ALTER_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_VIEW,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_REINDEX,  # CREATE INDEX fills its index this way
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_UPDATE,
}
# printf('%.*c', 2000000000, 'x') loops for seconds inside one instruction, out of reach of the
# clock.
_REFUSED_FUNCTIONS = frozenset(
    {"fts3_tokenizer", "format", "load_extension", "printf", "readfile", "writefile"}
)

# All that sqlite3 raises for a statement's own fault, null characters and lone surrogates included.
_STATEMENT_ERRORS = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError)


@dataclass(frozen=True)
class Result:
    """What a query gave: `rows` if it is `done`, otherwise `error` says why not."""

    status: Literal["done", "failed", "timeout"]
    rows: Rows = ()
    error: str | None = None


class SetupError(Exception):
    """The statements that should build the database do not run."""


class SqlSandbox:
    """An in-memory SQLite database that is filled once and then only read.

    No statement reaches a file: ATTACH, VACUUM INTO, PRAGMA, extensions and virtual tables are
    refused, and sorting spills to memory. SQLite's heap is limited to 256 MiB; that limit holds for
    all SQLite connections of the process and stays (https://sqlite.org/pragma.html#pragma_hard_heap_limit).

    Args:
        setup: CREATE and INSERT statements.
        max_rows: a query that gives more rows fails.
        max_seconds: processor time for the setup, and again for each query: a busy machine does
            not change a score.

    Raises:
        SetupError: the setup does not run.
    """

    def __init__(self, setup: str, *, max_rows: int = 10_000, max_seconds: float = 2.0) -> None:
        self._max_rows = max_rows
        self._max_seconds = max_seconds
        self._deadline = time.thread_time() + max_seconds
        self._allowed = _SETUP_ACTIONS
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            self._confine()
            self._connection.executescript(setup)
        except _STATEMENT_ERRORS as error:
            self._connection.close()
            raise SetupError(_reason(error)) from error
        self._allowed = _QUERY_ACTIONS

    def __enter__(self) -> SqlSandbox:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def query(self, sql: str) -> Result:
        """Run one SELECT or WITH statement; never raises for what the statement does."""
        word = first_word(sql)
        if word not in ("SELECT", "WITH"):
            return Result(
                "failed", error=f"not a SELECT statement: it begins with {word or sql[:20]!r}"
            )
        self._deadline = time.thread_time() + self._max_seconds
        try:
            return self._fetch(self._connection.execute(sql))
        except _STATEMENT_ERRORS as error:
            if time.thread_time() >= self._deadline:
                return Result("timeout", error=f"stopped after {self._max_seconds:g} s")
            return Result("failed", error=_reason(error))

    def has_rows(self) -> bool:
        """Whether any table holds a row."""
        tables = self.query("SELECT name FROM sqlite_master WHERE type = 'table'").rows
        quoted = ('"' + str(name).replace('"', '""') + '"' for (name,) in tables)
        return any(self.query(f"SELECT 1 FROM {table} LIMIT 1").rows for table in quoted)

    def _confine(self) -> None:
        connection = self._connection
        # The driver's own error on broken UTF-8 would hide a result; compare the bytes instead.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA hard_heap_limit = {_MAX_HEAP_BYTES}")
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
            (sqlite3.SQLITE_LIMIT_COLUMN, 200),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(limit, value)
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(lambda: time.thread_time() >= self._deadline, _CHECK_EVERY)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        refused = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS
        allowed = action in self._allowed and not refused
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _fetch(self, cursor: sqlite3.Cursor) -> Result:
        rows: list[tuple[Cell, ...]] = []
        size = 0
        for row in cursor:
            rows.append(row)
            size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            if len(rows) > self._max_rows:
                return Result("failed", error=f"more than {self._max_rows} rows")
            if size > _MAX_RESULT_BYTES:
                return Result("failed", error=f"a result of more than {_MAX_RESULT_BYTES} bytes")
        return Result("done", tuple(rows))


def run_sql(setup: str, query: str, *, max_rows: int = 10_000, max_seconds: float = 2.0) -> Result:
    """Build the database, run one query, close it; a setup that does not run is a failure too."""
    try:
        with SqlSandbox(setup, max_rows=max_rows, max_seconds=max_seconds) as sandbox:
            return sandbox.query(query)
    except SetupError as error:
        return Result("failed", error=f"setup: {error}")


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"needs more than {_MAX_HEAP_BYTES // 2**20} MiB"
    return str(error)
