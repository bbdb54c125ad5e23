from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunesmith.tasks.text_to_sql import SqlItem, SqlOutcome, same_result, score

SCHEMA = "CREATE TABLE singer (id INTEGER, name TEXT, age INTEGER, country TEXT);"
SETUP = (
    SCHEMA + "INSERT INTO singer VALUES (1, 'Ava', 30, 'France'), (2, 'Ben', 41, 'Japan'), "
    "(3, 'Cleo', 25, 'France'), (4, 'Dan', NULL, 'Peru');"
)


def outcome(gold: str, prediction: str, setup: str | None = SETUP) -> SqlOutcome:
    (only,) = score([SqlItem("1", SCHEMA, gold, prediction, setup)], max_seconds=0.3).outcomes
    return only


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("SELECT name FROM singer", "SELECT name FROM singer"),
        # Another way to the same rows, in another order, under another name.
        ("SELECT name FROM singer", "SELECT name AS n FROM singer ORDER BY age DESC"),
        ("SELECT name FROM singer WHERE age > 28", "SELECT name FROM singer WHERE age >= 30;"),
        ("SELECT AVG(age) FROM singer", "SELECT SUM(age) / 3.0 FROM singer"),
        ("SELECT COUNT(*) FROM singer", "SELECT 4.0"),
        ("SELECT age FROM singer WHERE name > 'Bz'", "SELECT NULL UNION ALL SELECT 25"),
        ("SELECT country FROM singer", "SELECT country FROM singer ORDER BY id DESC"),
        ("SELECT name FROM singer ORDER BY age DESC LIMIT 1",
         "SELECT name FROM singer WHERE age = (SELECT MAX(age) FROM singer)"),
        ("SELECT name FROM (SELECT * FROM singer ORDER BY age)", "SELECT name FROM singer"),
        ("SELECT COUNT(*) FROM singer WHERE age > 99", "SELECT 0"),
        ('SELECT name FROM singer WHERE country = "Japan"',
         "SELECT name FROM singer WHERE country = 'Japan'"),
    ],
)  # fmt: skip
def test_right_answers(gold: str, prediction: str) -> None:
    assert outcome(gold, prediction).status == "right"


@pytest.mark.parametrize(
    ("gold", "prediction", "reason"),
    [
        ("SELECT name FROM singer ORDER BY age", "SELECT name FROM singer", "another order"),
        ("SELECT country FROM singer", "SELECT DISTINCT country FROM singer", "3 rows, gold has 4"),
        ("SELECT country FROM singer",
         "SELECT CASE id WHEN 3 THEN 'Japan' ELSE country END FROM singer",
         "other values"),
        ("SELECT name, age FROM singer", "SELECT age, name FROM singer", "other values"),
        ("SELECT name FROM singer", "SELECT name, age FROM singer", "2 columns, gold has 1"),
        ("SELECT name FROM singer", "SELECT name FROM singer WHERE 0", "0 rows"),
        ("SELECT COUNT(*) FROM singer", "SELECT '4'", "other values"),
        ("SELECT age FROM singer", "SELECT IFNULL(age, 0) FROM singer", "other values"),
        ("SELECT AVG(age) FROM singer", "SELECT 32.001", "other values"),
        ("SELECT name FROM singer WHERE id = 1", "SELECT x'417661'", "other values"),
    ],
)  # fmt: skip
def test_wrong_results(gold: str, prediction: str, reason: str) -> None:
    result = outcome(gold, prediction)
    assert result.status == "wrong_result"
    assert reason in str(result.reason)


@pytest.mark.parametrize(
    ("prediction", "status", "reason"),
    [
        ("", "empty", "no statement"),
        ("\n \n", "empty", "no statement"),
        ("<end_of_turn>", "empty", "no statement"),
        ("I would look at the singers.", "failed", "not a SELECT statement: it begins with 'I'"),
        ("SELECT nme FROM singer", "failed", "no such column: nme"),
        ("SELECT name FROM singer WHERE", "failed", "incomplete input"),
        ("DROP TABLE singer", "failed", "not a SELECT statement"),
        ("ATTACH 'x' AS y", "failed", "not a SELECT statement"),
        ("SELECT name\x00 FROM singer", "failed", "null character"),
        ("SELECT '\ud800'", "failed", "surrogates"),
        ("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n FROM c) SELECT COUNT(*) FROM c",
         "timeout", "stopped after 0.3 s"),
    ],
)  # fmt: skip
def test_answers_that_give_no_result(prediction: str, status: str, reason: str) -> None:
    result = outcome("SELECT name FROM singer", prediction)
    assert result.status == status
    assert reason in str(result.reason)


@pytest.mark.parametrize(
    ("gold", "setup", "reason"),
    [
        ("SELECT name FROM singer", None, "no rows in context"),
        ("SELECT name FROM singer", "", "no rows in context"),
        ("SELECT name FROM singer", "CREATE TABLE (", "context does not run"),
        ("SELECT TOP 3 name FROM singer", SETUP, "gold is not SQLite"),
        ("SELECT CONTAINS(name, 'a') FROM singer", SETUP, "gold is not SQLite"),
        ("SELECT title FROM song", SETUP, "gold fails"),
        ("DELETE FROM singer", SETUP, "gold fails"),
        ("SELECT name FROM singer WHERE age > 99", SETUP, "gold returns nothing"),
        ("SELECT MAX(age) FROM singer WHERE age > 99", SETUP, "gold returns nothing"),
    ],
)
def test_gold_without_a_result_is_never_right(gold: str, setup: str | None, reason: str) -> None:
    result = outcome(gold, gold, setup)
    assert result.status == "not_measurable"
    assert result.reason == reason


def test_statement_is_scored_not_the_rest_of_the_answer() -> None:
    result = outcome("SELECT name FROM singer", "```sql\nSELECT name FROM singer;\n```\nDone.")
    assert result.status == "right"
    assert result.exact_match
    assert result.statement == "SELECT name FROM singer"


def test_report_counts_every_item_once() -> None:
    gold = "SELECT name FROM singer ORDER BY age"
    items = [
        SqlItem("right", SCHEMA, gold, "SELECT singer.name FROM singer ORDER BY age ASC", SETUP),
        SqlItem("failed", SCHEMA, gold, "SELECT nme FROM singer", SETUP),
        SqlItem("wrong", SCHEMA, gold, "SELECT name FROM singer", SETUP),
        SqlItem("unmeasurable", SCHEMA, gold, gold),
        SqlItem("empty", SCHEMA, gold, "", SETUP),
    ]
    report = score(iter(items))
    assert (report.total, report.measurable, report.correct) == (5, 4, 1)
    assert report.not_measurable == {"no rows in context": 1}
    assert report.execution_accuracy == 0.25
    assert report.exact_match == pytest.approx(2 / 5)
    assert [o.id for o in report.outcomes] == [item.id for item in items]
    assert [o.id for o in report.worst_first()] == [
        "empty",
        "failed",
        "wrong",
        "unmeasurable",
        "right",
    ]
    written = json.loads(json.dumps(report.to_json()))
    assert written["execution_accuracy"] == 0.25
    assert written["counts"]["timeout"] == 0
    assert written["outcomes"][1]["reason"] == "no such column: nme"


def test_report_without_a_measurable_item_has_no_accuracy() -> None:
    report = score([SqlItem("1", SCHEMA, "SELECT 1", "SELECT 1")])
    assert report.execution_accuracy is None
    assert report.exact_match == 1.0
    assert score([]).execution_accuracy is None
    assert score([]).exact_match is None


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (((1,),), ((1.0,),), True),
        (((0.1 + 0.2,),), ((0.3,),), True),
        (((1e15,),), ((1e15 + 1,),), True),
        (((2**60,),), ((2**60 + 1,),), False),
        (((0.0,),), ((1e-12,),), True),
        (((100.0,),), ((100.01,),), False),
        (((None,),), ((0,),), False),
        (((None,),), ((None,),), True),
        (((float("inf"),),), ((float("inf"),),), True),
        (((float("inf"),),), ((1e308,),), False),
        ((("1",),), ((1,),), False),
        ((("a",),), ((b"a",),), False),
        (((1, "a"), (1, "b")), ((1, "b"), (1, "a")), True),
        (((1,), (1,), (2,)), ((1,), (2,), (2,)), False),
        (((1, None), (None, 1)), ((None, 1), (1, None)), True),
        (((1, "a"), (2, None)), ((2, None), (1.0, "a")), True),
        # Noise in one column must not pair rows up by it.
        (((1.0, 7), (1.0 + 1e-12, 5)), ((1.0, 5), (1.0 + 1e-12, 7)), True),
        ((), (), True),
        (((),), ((),), True),
    ],
)
def test_results_compared_as_multisets(left: tuple, right: tuple, equal: bool) -> None:
    assert same_result(left, right, ordered=False) is equal
    assert same_result(right, left, ordered=False) is equal


def test_results_compared_in_order() -> None:
    assert same_result(((1,), (2,)), ((1.0,), (2,)), ordered=True)
    assert not same_result(((1,), (2,)), ((2,), (1,)), ordered=True)


def test_real_rows_without_data_match_exactly_and_are_not_measurable(shared_data: Path) -> None:
    """All of sql-create-context: its contexts hold no rows, so nothing can be run."""
    lines = (shared_data / "sql-create-context-eval.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    items = [
        SqlItem(str(n), row["context"], row["answer"], row["answer"]) for n, row in enumerate(rows)
    ]
    report = score(items)
    assert report.total == 500
    assert report.exact_match == 1.0
    assert report.measurable == 0
    assert report.execution_accuracy is None
    assert report.not_measurable == {"no rows in context": 500}
