"""One function for each kind of question: picks columns and values, writes the SQL in one style.

Each function's docstring is one way to ask it.

The style is the same everywhere, so that a small model can learn it: upper-case keywords, single
quotes, no aliases, no semicolon, table names in front of columns only in joins, and joins always
`FROM child JOIN parent ON child.parent_id = parent.id`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tunesmith.demo.tables import Column, Database, Table, Value, plural, quoted


class Draft(NamedTuple):
    """What a template's slots say, and the query that answers it."""

    slots: dict[str, str]
    sql: str


class Unsuitable(Exception):
    """The database has nothing for the kind of question just drawn; draw again."""


T = TypeVar("T")
Kind = Callable[[Database, random.Random], Draft]

_MOST = {"DESC": ("highest", "largest", "greatest"), "ASC": ("lowest", "smallest")}
_ORDER = {
    "DESC": ("from highest to lowest", "in descending order"),
    "ASC": ("from lowest to highest", "in ascending order"),
}
_COMPARISONS = {
    ">": ("above", "over", "more than", "greater than"),
    "<": ("below", "under", "less than"),
    ">=": ("at least",),
    "<=": ("at most",),
}
_YEAR_COMPARISONS = {">": ("after", "later than"), "<": ("before", "earlier than")}
_AGGREGATES = {
    "SUM": ("total",),
    "AVG": ("average", "mean"),
    "MIN": ("minimum", "lowest"),
    "MAX": ("maximum", "highest"),
}


def lookup(db: Database, rng: random.Random) -> Draft:
    """What is the age of the singer Ava Stone?"""
    table = rng.choice(db.tables)
    column = _pick(table.having("category", "amount", "measure", "year"), rng)
    value = rng.choice(db.values(table, table.label))
    return Draft(
        _nouns(table) | {"col": column.words, "x": str(value)},
        f"SELECT {column.name} FROM {table.name} WHERE {_equals(table.label, value)}",
    )


def text_filter(db: Database, rng: random.Random) -> Draft:
    """List the names of all singers with country France."""
    table, cat, value = _category_value(db, rng)
    column = rng.choice([table.label, table.label, *table.having("amount", "measure")])
    return Draft(
        _nouns(table) | _column(column) | {"cat": cat.words, "x": str(value)},
        f"SELECT {column.name} FROM {table.name} WHERE {_equals(cat, value)}",
    )


def number_filter(db: Database, rng: random.Random) -> Draft:
    """Which singers have an age above 30? Give their names."""
    table, column = _number(db, rng, "amount", "measure", "year")
    words, condition = _comparison(db, table, column, rng)
    return Draft(
        _nouns(table) | _column(column) | {"x": words},
        f"SELECT {table.label.name} FROM {table.name} WHERE {condition}",
    )


def two_conditions(db: Database, rng: random.Random) -> Draft:
    """List the names of singers with country France and age above 30."""
    table, cat, value = _category_value(db, rng)
    column = _pick(table.having("amount", "measure", "year"), rng)
    words, condition = _comparison(db, table, column, rng)
    return Draft(
        _nouns(table) | {"cat": cat.words, "v": str(value), "col": column.words, "x": words},
        f"SELECT {table.label.name} FROM {table.name} WHERE {_equals(cat, value)} AND {condition}",
    )


def between(db: Database, rng: random.Random) -> Draft:
    """List the names of singers with an age between 30 and 40."""
    table, column = _number(db, rng, "amount", "measure", "year")
    values = sorted(db.values(table, column))
    first = rng.randrange(1, len(values) - 4)
    low, high = values[first], values[rng.randrange(first + 2, len(values) - 1)]
    return Draft(
        _nouns(table) | {"col": column.words, "low": str(low), "high": str(high)},
        f"SELECT {table.label.name} FROM {table.name} WHERE {column.name} BETWEEN {low} AND {high}",
    )


def count(db: Database, rng: random.Random) -> Draft:
    """How many singers are there?"""
    table = rng.choice(db.tables)
    return Draft(_nouns(table), f"SELECT COUNT(*) FROM {table.name}")


def count_filter(db: Database, rng: random.Random) -> Draft:
    """How many singers have country France?"""
    table = rng.choice(db.tables)
    column, words, condition = _condition(db, table, rng, "category", "amount", "measure", "year")
    return Draft(
        _nouns(table) | {"col": column.words, "x": words},
        f"SELECT COUNT(*) FROM {table.name} WHERE {condition}",
    )


def aggregate(db: Database, rng: random.Random) -> Draft:
    """What is the average age of all singers?"""
    table, column = _number(db, rng, "amount", "measure")
    function, word = _aggregate(column, rng)
    return Draft(
        _nouns(table) | {"agg": word, "col": column.words},
        f"SELECT {function}({column.name}) FROM {table.name}",
    )


def aggregate_filter(db: Database, rng: random.Random) -> Draft:
    """What is the average age of singers whose country is France?"""
    table, cat, value = _category_value(db, rng)
    column = _pick(table.having("amount", "measure"), rng)
    function, word = _aggregate(column, rng)
    return Draft(
        _nouns(table) | {"agg": word, "col": column.words, "cat": cat.words, "x": str(value)},
        f"SELECT {function}({column.name}) FROM {table.name} WHERE {_equals(cat, value)}",
    )


def distinct(db: Database, rng: random.Random) -> Draft:
    """List the different countries of the singers."""
    table, cat, _ = _category_value(db, rng)
    return Draft(_nouns(table) | _column(cat), f"SELECT DISTINCT {cat.name} FROM {table.name}")


def group_count(db: Database, rng: random.Random) -> Draft:
    """How many singers are there for each country?"""
    table, cat, _ = _category_value(db, rng)
    return Draft(
        _nouns(table) | _column(cat),
        f"SELECT {cat.name}, COUNT(*) FROM {table.name} GROUP BY {cat.name}",
    )


def group_having(db: Database, rng: random.Random) -> Draft:
    """Which countries have more than 2 singers?"""
    table, cat, _ = _category_value(db, rng)
    sizes = sorted(Counter(db.values(table, cat)).values())
    limits = [size for size in sizes if size >= 2 and sizes[0] <= size < sizes[-1]]
    limit = _pick(limits, rng)
    operator = rng.choice((">", ">=")) if limit > sizes[0] else ">"
    word = "more than" if operator == ">" else "at least"
    return Draft(
        _nouns(table) | _column(cat) | {"x": f"{word} {limit}"},
        f"SELECT {cat.name} FROM {table.name} GROUP BY {cat.name} "
        f"HAVING COUNT(*) {operator} {limit}",
    )


def superlative(db: Database, rng: random.Random) -> Draft:
    """What is the name of the singer with the highest age?"""
    table, column = _number(db, rng, "amount", "measure")
    direction = rng.choice(("DESC", "ASC"))
    return Draft(
        _nouns(table) | {"col": column.words, "most": rng.choice(_MOST[direction])},
        f"SELECT {table.label.name} FROM {table.name} ORDER BY {column.name} {direction} LIMIT 1",
    )


def top_n(db: Database, rng: random.Random) -> Draft:
    """What are the names of the 3 singers with the highest age?"""
    table, column = _number(db, rng, "amount", "measure")
    direction, n = rng.choice(("DESC", "ASC")), rng.randint(2, 5)
    most = rng.choice(_MOST[direction])
    return Draft(
        _nouns(table) | _column(column) | {"most": most, "n": str(n)},
        f"SELECT {table.label.name} FROM {table.name} ORDER BY {column.name} {direction} LIMIT {n}",
    )


def sorted_list(db: Database, rng: random.Random) -> Draft:
    """List the names of all singers sorted by age in descending order."""
    table, column = _number(db, rng, "amount", "measure", "year")
    direction = rng.choice(("DESC", "ASC"))
    return Draft(
        _nouns(table) | {"col": column.words, "order": rng.choice(_ORDER[direction])},
        f"SELECT {table.label.name} FROM {table.name} ORDER BY {column.name} {direction}",
    )


def join_filter(db: Database, rng: random.Random) -> Draft:
    """List the titles of songs whose singer's country is France."""
    child, parent, link = rng.choice(db.links())
    column, words, condition = _parent_condition(db, parent, rng)
    return Draft(
        _nouns(child) | _parent_nouns(parent) | {"pcol": column.words, "x": words},
        f"SELECT {child.name}.{child.label.name} {_join(child, parent, link)} WHERE {condition}",
    )


def join_aggregate(db: Database, rng: random.Random) -> Draft:
    """What is the number of songs whose singer has the country France?"""
    child, parent, link = rng.choice(db.links())
    column, words, condition = _parent_condition(db, parent, rng)
    what, selected = f"number of {plural(child.words)}", "COUNT(*)"
    if rng.random() < 0.5:
        number = _pick(child.having("amount", "measure"), rng)
        function, word = _aggregate(number, rng)
        what = f"{word} {number.words} of {plural(child.words)}"
        selected = f"{function}({child.name}.{number.name})"
    return Draft(
        _parent_nouns(parent) | {"what": what, "pcol": column.words, "x": words},
        f"SELECT {selected} {_join(child, parent, link)} WHERE {condition}",
    )


def not_in(db: Database, rng: random.Random) -> Draft:
    """Which singers have no songs? Give their names."""
    child, parent, link = rng.choice(db.links())
    return Draft(
        _nouns(child) | _parent_nouns(parent),
        f"SELECT {parent.label.name} FROM {parent.name} "
        f"WHERE id NOT IN (SELECT {link.name} FROM {child.name})",
    )


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        lookup,
        text_filter,
        number_filter,
        two_conditions,
        between,
        count,
        count_filter,
        aggregate,
        aggregate_filter,
        distinct,
        group_count,
        group_having,
        superlative,
        top_n,
        sorted_list,
        join_filter,
        join_aggregate,
        not_in,
    )
}


def _pick(options: Sequence[T], rng: random.Random) -> T:
    if not options:
        raise Unsuitable
    return rng.choice(options)


def _category_value(db: Database, rng: random.Random) -> tuple[Table, Column, Value]:
    table = rng.choice(db.tables)
    column = _pick(table.having("category"), rng)
    return table, column, rng.choice(db.values(table, column))


def _number(db: Database, rng: random.Random, *roles: str) -> tuple[Table, Column]:
    table = rng.choice(db.tables)
    return table, _pick([column for column in table.columns if column.role in roles], rng)


def _condition(
    db: Database, table: Table, rng: random.Random, *roles: str
) -> tuple[Column, str, str]:
    """A column of the table, how its condition is said, and the condition in SQL."""
    column = _pick([column for column in table.columns if column.role in roles], rng)
    if column.role in ("label", "category"):
        value = rng.choice(db.values(table, column))
        return column, str(value), _equals(column, value)
    return column, *_comparison(db, table, column, rng)


def _parent_condition(db: Database, parent: Table, rng: random.Random) -> tuple[Column, str, str]:
    column, words, condition = _condition(
        db, parent, rng, "label", "category", "amount", "measure", "year"
    )
    return column, words, f"{parent.name}.{condition}"


def _comparison(db: Database, table: Table, column: Column, rng: random.Random) -> tuple[str, str]:
    """A comparison that splits the rows, at a value that occurs: `>` and `>=` then differ."""
    wordings = _YEAR_COMPARISONS if column.role == "year" else _COMPARISONS
    operator = rng.choice(list(wordings))
    values = sorted(db.values(table, column))
    value = rng.choice(values[2:-2])
    return (
        f"{rng.choice(wordings[operator])} {value}",
        f"{column.name} {operator} {value}",
    )


def _aggregate(column: Column, rng: random.Random) -> tuple[str, str]:
    functions = [name for name in _AGGREGATES if name != "SUM" or column.role == "amount"]
    function = rng.choice(functions)
    return function, rng.choice(_AGGREGATES[function])


def _nouns(table: Table) -> dict[str, str]:
    label = table.label.words
    return {
        "t": table.words,
        "ts": plural(table.words),
        "label": label,
        "labels": plural(label),
    }


def _parent_nouns(parent: Table) -> dict[str, str]:
    return {
        "p": parent.words,
        "ps": plural(parent.words),
        "plabel": parent.label.words,
        "plabels": plural(parent.label.words),
    }


def _column(column: Column) -> dict[str, str]:
    return {"col": column.words, "cols": plural(column.words)}


def _equals(column: Column, value: Value) -> str:
    return f"{column.name} = {quoted(value)}"


def _join(child: Table, parent: Table, link: Column) -> str:
    return f"FROM {child.name} JOIN {parent.name} ON {child.name}.{link.name} = {parent.name}.id"
