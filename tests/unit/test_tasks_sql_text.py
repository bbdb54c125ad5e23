from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.tasks.sql_text import (
    extract_statement,
    first_word,
    has_top_level_order,
    names,
    normalized,
)

SCHEMA = "CREATE TABLE singer (id INTEGER, name TEXT, age INTEGER, country TEXT)"
KNOWN = names(SCHEMA) | {"song", "singer_id", "title"}
PLAIN = "SELECT name FROM singer WHERE age > 30"


@pytest.mark.parametrize(
    "answer",
    [
        PLAIN,
        f"{PLAIN};",
        f"  \n{PLAIN} ;\n",
        f"{PLAIN}\n\nQuestion: how many singers are there?\nSELECT COUNT(*) FROM singer;",
        f"{PLAIN}\nSELECT age FROM singer\nSELECT id FROM singer",
        f"{PLAIN}\nWhat is the singer's age?",
        f"{PLAIN}\nuser\nHow many singers are there?",
        f"{PLAIN}\nQuestion: How many singers are there?",
        f"{PLAIN}\nCREATE TABLE song (id INTEGER);",
        f"{PLAIN}; DROP TABLE singer; SELECT 1",
        f"{PLAIN}<end_of_turn>\n<start_of_turn>user\nNext",
        f"{PLAIN}<eos>{PLAIN}",
        f"{PLAIN}<turn|>\n<|turn>user\n",
        f"{PLAIN}<|endoftext|>Once upon a time",
        f"```sql\n{PLAIN};\n```\nThis query lists the names.",
        f"```sql\n{PLAIN}\n```",
        f"```\n{PLAIN}\n```",
        f"Here's the query:\n```sql\n{PLAIN};\n```",
        f"SQL: {PLAIN}",
        f"Sure! With pleasure, here's what you asked for:\n\n{PLAIN};\n\nIt's simple.",
        f"The answer is `{PLAIN}`, I think.",
    ],
)
def test_answer_is_cut_at_its_first_statement(answer: str) -> None:
    assert extract_statement(answer) == PLAIN


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT name FROM singer WHERE name = 'a;b'",
        "SELECT name FROM singer WHERE name = 'it''s; so'",
        'SELECT "a;b" FROM singer',
        "SELECT `a;b` FROM singer",
        "SELECT [a;b] FROM singer",
        "SELECT name -- first; second\nFROM singer",
        "SELECT name /* a;\n\nb */ FROM singer",
        "SELECT name FROM singer WHERE name = 'SELECT 1;\n\nSELECT 2'",
        "SELECT name FROM singer WHERE name = '```<eos>'",
        "SELECT name,\nage\nFROM singer\nWHERE age > 30\nAND age <\n40\nORDER BY\nage\nLIMIT 3",
        "SELECT name FROM singer\nUNION ALL\nSELECT title FROM song",
        "SELECT name FROM singer WHERE id IN (\nSELECT singer_id\nFROM song\n)",
        "SELECT CASE\nWHEN age > 3 THEN 1\nELSE 2\nEND\nFROM singer",
        "WITH old AS (\nSELECT name FROM singer\n)\nSELECT name FROM old",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)\nSELECT n FROM c",
        "select name\nfrom singer\nleft outer join song\non song.singer_id = singer.id",
    ],
)
def test_whole_statements_stay_whole(statement: str) -> None:
    assert extract_statement(statement) == statement
    assert extract_statement(statement + ";\nSELECT 1") == statement


def test_with_statement_ends_before_a_second_select() -> None:
    first = "WITH old AS (SELECT name FROM singer)\nSELECT name FROM old"
    assert extract_statement(first + "\nSELECT age FROM singer") == first


@pytest.mark.parametrize(
    ("answer", "statement"),
    [
        ("", ""),
        (" \n\n ", ""),
        (";", ""),
        ("<end_of_turn>", ""),
        ("<end_of_turn>\nSELECT 1", ""),
        ("I cannot answer that.\n\nSorry.", "I cannot answer that."),
        ("DROP TABLE singer; SELECT 1", "DROP TABLE singer"),
        ("SELECT 'open", "SELECT 'open"),
        ("SELECT 'open; SELECT 2", "SELECT 'open"),
        ("SELECT a\x00b", "SELECT a\x00b"),
        ("SELECT /* open", "SELECT /* open"),
    ],
)
def test_odd_answers(answer: str, statement: str) -> None:
    assert extract_statement(answer) == statement


PIECES = [
    "SELECT ",
    "WITH ",
    "a",
    "AS ",
    "\n",
    "\n\n",
    " ",
    "1",
    "é",
    "\x00",
    "\ud800",
    "<eos>",
    ":",
]
PIECES += [*"'\";`[]()-/*.<>|,"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60))
def test_extraction_ends_and_cutting_twice_changes_nothing(answer: str) -> None:
    statement = extract_statement(answer)
    assert statement in answer
    assert extract_statement(statement) == statement


def test_a_long_answer_is_cut_in_linear_time() -> None:
    """Unclosed quotes and comments by the thousand: no pattern backtracks over them again."""
    assert extract_statement("SELECT 1;" + "'\"`[/*" * 200_000) == "SELECT 1"
    assert extract_statement("SELECT " + "(" * 100_000) == "SELECT " + "(" * 100_000
    assert extract_statement("\n" * 200_000 + "SELECT 1") == "SELECT 1"
    assert extract_statement("WITH a (" * 20_000).startswith("WITH a (")


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT name FROM singer ORDER BY age", True),
        ("select name from singer order\n  by age limit 3", True),
        ("SELECT name FROM singer", False),
        ("SELECT name FROM (SELECT name FROM singer ORDER BY age)", False),
        ("SELECT RANK() OVER (ORDER BY age) FROM singer", False),
        ("SELECT name FROM singer WHERE name = ' ORDER BY '", False),
        ("SELECT name FROM singer -- ORDER BY age", False),
        ("SELECT 1 UNION SELECT 2 ORDER BY 1", True),
        ("WITH a AS (SELECT 1 ORDER BY 1) SELECT * FROM a", False),
    ],
)
def test_only_the_statements_own_order_counts(sql: str, ordered: bool) -> None:
    assert has_top_level_order(sql) is ordered


def test_first_word_skips_comments() -> None:
    assert first_word("/* a */ -- b\n select 1") == "SELECT"
    assert first_word("(SELECT 1)") == ""
    assert first_word("") == ""


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("SELECT name FROM singer", "select  NAME\nfrom Singer ;"),
        ("SELECT name FROM singer -- all", "SELECT name FROM singer"),
        ("SELECT name FROM singer WHERE country = 'France'",
         'SELECT "name" FROM `singer` WHERE country = "France"'),
        ("SELECT name FROM singer", "SELECT singer.name FROM singer"),
        ("SELECT name FROM singer", "SELECT T1.name FROM singer AS T1"),
        ("SELECT COUNT(*) FROM singer", "SELECT count( * ) AS total FROM singer"),
        ("SELECT name FROM singer WHERE age <> 3", "SELECT name FROM singer WHERE age != 3"),
        ("SELECT name FROM singer ORDER BY age", "SELECT name FROM singer ORDER BY age ASC"),
        ("SELECT singer.name FROM song JOIN singer ON song.singer_id = singer.id",
         "SELECT b.name FROM song AS a INNER JOIN singer b ON a.singer_id = b.id"),
    ],
)  # fmt: skip
def test_equal_statements_have_one_normal_form(left: str, right: str) -> None:
    assert normalized(left, KNOWN) == normalized(right, KNOWN)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("SELECT name FROM singer", "SELECT age FROM singer"),
        ("SELECT name FROM singer WHERE country = 'France'",
         "SELECT name FROM singer WHERE country = 'france'"),
        ("SELECT name FROM singer WHERE country = 'a  b'",
         "SELECT name FROM singer WHERE country = 'a b'"),
        ("SELECT name FROM singer WHERE age = 'name'",
         'SELECT name FROM singer WHERE age = "name"'),
        ("SELECT name FROM singer ORDER BY age", "SELECT name FROM singer ORDER BY age DESC"),
        ("SELECT name FROM singer WHERE age > 3", "SELECT name FROM singer WHERE age >= 3"),
        ("SELECT a.name FROM singer a JOIN singer b ON a.id = b.age",
         "SELECT b.name FROM singer a JOIN singer b ON a.id = b.age"),
        ("SELECT name FROM singer LEFT JOIN song ON singer.id = singer_id",
         "SELECT name FROM singer JOIN song ON singer.id = singer_id"),
        ("SELECT age AS n FROM singer ORDER BY n", "SELECT name AS n FROM singer ORDER BY n"),
        # What sqlglot cannot parse:
        ("SELECT name FROM WHERE 'A'", "SELECT name FROM WHERE 'a'"),
    ],
)  # fmt: skip
def test_different_statements_keep_different_normal_forms(left: str, right: str) -> None:
    assert normalized(left, KNOWN) != normalized(right, KNOWN)


def test_unparsable_text_is_normalized_outside_its_literals() -> None:
    left = normalized('SELECT  Name FROM WHERE x = "A  b" ;', KNOWN)
    assert (
        left
        == normalized("select name from where X = 'A  b'", KNOWN)
        == ("select name from where x = 'A  b'")
    )


@pytest.mark.parametrize(
    "sql",
    ["", ";", "prose, no SQL", "SELECT", "SELECT " + "(" * 3000, "SELECT 'a", "SHOW TABLES",
     "SELECT " + "-" * 3000 + "1", "SELECT a FROM b WHERE " + "NOT " * 3000 + "c", "\x00", "\ud800",
     "SELECT 1 WHERE " + "1 + " * 3000 + "1", "SELECT 1 " + "UNION SELECT 1 " * 2000],
)  # fmt: skip
def test_normalizing_never_raises(sql: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert isinstance(normalized(sql, KNOWN), str)
    assert capfd.readouterr().err == ""


def test_names_of_a_schema() -> None:
    assert names('CREATE TABLE "Time Table" (`End` TEXT, [a b] INT)') >= {
        "time table",
        "end",
        "a b",
        "text",
    }
