"""The demo's small databases: columns with a role, tables, and rows made from a seed.

A column's role says which questions make sense about it: names identify a row, categories repeat,
amounts may be added up, measures only averaged, years neither.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Role = Literal["id", "label", "category", "amount", "measure", "year", "link"]
Value = str | int | float
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Column:
    """One column: its SQL name, what it means, and where its values come from.

    `choices` holds a label's or category's values, the low and high end of a number, or the table
    that a link points to.
    """

    role: Role
    choices: tuple[Value, ...]
    name: str = ""

    @property
    def words(self) -> str:
        """The name as it is said in a question: `birth_year` is "birth year"."""
        return self.name.replace("_", " ")

    @property
    def sql_type(self) -> str:
        """INTEGER, REAL or TEXT."""
        if self.role in ("label", "category"):
            return "TEXT"
        return "REAL" if isinstance(self.choices[0], float) else "INTEGER"


@dataclass(frozen=True)
class Table:
    """A table; its first column is always `id`, its second the label."""

    name: str
    columns: tuple[Column, ...]

    @property
    def words(self) -> str:
        """The name as it is said in a question."""
        return self.name.replace("_", " ")

    @property
    def label(self) -> Column:
        """The column that names a row."""
        return self.columns[1]

    def having(self, *roles: Role) -> list[Column]:
        """The columns with one of these roles, in order."""
        return [column for column in self.columns if column.role in roles]

    @property
    def create_sql(self) -> str:
        """The CREATE TABLE statement, on one line."""
        columns = ", ".join(f"{column.name} {column.sql_type}" for column in self.columns)
        return f"CREATE TABLE {self.name} ({columns});"


@dataclass(frozen=True)
class Domain:
    """A hand-written schema, parents before the tables that link to them."""

    name: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Database:
    """A domain with its rows: `rows[table name]` is in id order."""

    name: str
    tables: tuple[Table, ...]
    rows: dict[str, tuple[Row, ...]]

    @property
    def schema(self) -> str:
        """The CREATE TABLE lines, as short as a model's prompt wants them."""
        return "\n".join(table.create_sql for table in self.tables)

    @cached_property
    def setup(self) -> str:
        """CREATE and INSERT statements that build the populated database."""
        return self._setup(1)

    @cached_property
    def setup_reversed(self) -> str:
        """The same database with its rows stored backwards: no fair question notices."""
        return self._setup(-1)

    def _setup(self, step: Literal[1, -1]) -> str:
        inserts = []
        for table in self.tables:
            rows = ", ".join(map(_row_sql, self.rows[table.name][::step]))
            inserts.append(f"INSERT INTO {table.name} VALUES {rows};")
        return "\n".join([self.schema, *inserts])

    def table(self, name: str) -> Table:
        """The table of this name."""
        return next(table for table in self.tables if table.name == name)

    def links(self) -> list[tuple[Table, Table, Column]]:
        """Every (child, parent, link column) of the database."""
        return [
            (child, self.table(str(column.choices[0])), column)
            for child in self.tables
            for column in child.having("link")
        ]

    def values(self, table: Table, column: Column) -> list[Value]:
        """The column's values, in row order."""
        position = table.columns.index(column)
        return [row[position] for row in self.rows[table.name]]


def plural(words: str) -> str:
    """The plural of a noun or of a noun phrase's last word, for the regular nouns used here."""
    if words.endswith("y") and words[-2] not in "aeiou":
        return words[:-1] + "ies"
    return words + ("es" if words.endswith(("s", "x", "ch", "sh")) else "s")


def quoted(value: Value) -> str:
    """The value as an SQL literal."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def fill(domain: Domain, rng: random.Random) -> Database:
    """Make rows for every table: one row for each label.

    Numbers within a column are all different, so that no ORDER BY or LIMIT has a tie; categories
    repeat unevenly; each link leaves two parents without children.
    """
    rows: dict[str, tuple[Row, ...]] = {}
    for table in domain.tables:
        size = len(table.label.choices)
        columns = [_column_values(column, size, rows, rng) for column in table.columns]
        rows[table.name] = tuple(zip(*columns, strict=True))
    return Database(domain.name, domain.tables, rows)


def table(name: str, /, **columns: Column) -> Table:
    """Declare a table; `id` is added in front."""
    named = [replace(column, name=key) for key, column in columns.items()]
    return Table(name, (Column("id", (1,), "id"), *named))


def label(values: str) -> Column:
    """The column that names a row: all its values, comma separated, each used once."""
    return Column("label", tuple(values.split(", ")))


def category(values: str) -> Column:
    """A text column whose values repeat."""
    return Column("category", tuple(values.split(", ")))


def amount(low: int, high: int) -> Column:
    """A number of which a sum makes sense, such as a price."""
    return Column("amount", (low, high))


def measure(low: float, high: float) -> Column:
    """A number of which only an average makes sense, such as an age; floats get one decimal."""
    return Column("measure", (low, high))


def year(low: int, high: int) -> Column:
    """A year: compared and sorted, never added up."""
    return Column("year", (low, high))


def link(parent: str) -> Column:
    """The id of a row in another table."""
    return Column("link", (parent,))


def _row_sql(row: Row) -> str:
    return f"({', '.join(quoted(value) for value in row)})"


def _column_values(
    column: Column, size: int, rows: dict[str, tuple[Row, ...]], rng: random.Random
) -> list[Value]:
    match column.role:
        case "id":
            return list(range(1, size + 1))
        case "label":
            return rng.sample(column.choices, size)
        case "category":
            return _uneven(column.choices, size, rng)
        case "link":
            parents = range(1, len(rows[str(column.choices[0])]) + 1)
            return _uneven(rng.sample(parents, len(parents) - 2)[: size // 2], size, rng)
        case _:
            return _numbers(column, size, rng)


def _uneven(choices: Sequence[Value], size: int, rng: random.Random) -> list[Value]:
    """Each choice once, the rest drawn so that some occur more often than others."""
    weights = [rng.randint(1, 5) for _ in choices]
    values = [*choices, *rng.choices(choices, weights, k=size - len(choices))]
    rng.shuffle(values)
    return values


def _numbers(column: Column, size: int, rng: random.Random) -> list[Value]:
    low, high = column.choices
    if isinstance(low, float):
        tenths = rng.sample(range(round(low * 10), round(float(high) * 10) + 1), size)
        return [tenth / 10 for tenth in tenths]
    return list(rng.sample(range(int(low), int(high) + 1), size))
