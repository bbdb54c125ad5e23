from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tunesmith.tasks import sql_sandbox
from tunesmith.tasks.sql_sandbox import Result, SetupError, SqlSandbox, run_sql

SETUP = """
CREATE TABLE singer (id INTEGER, name TEXT, age REAL);
INSERT INTO singer VALUES (1, 'Ava', 20.5), (2, 'Ben', 31), (3, NULL, NULL);
"""
NUMBERS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"


def test_a_query_gives_its_rows() -> None:
    assert run_sql(SETUP, "SELECT id, name, age FROM singer WHERE id <> 2;") == Result(
        "done", ((1, "Ava", 20.5), (3, None, None))
    )
    assert run_sql(SETUP, "WITH a AS (SELECT 1 AS n) SELECT n FROM a").rows == ((1,),)
    assert run_sql(SETUP, "-- all\nSELECT COUNT(*) FROM singer").rows == ((3,),)
    assert run_sql(SETUP, "SELECT SUM(id) OVER (ORDER BY id) FROM singer").rows[-1] == (6,)


@pytest.mark.parametrize(
    "query",
    [
        f"{NUMBERS} SELECT COUNT(*) FROM c",
        f"{NUMBERS} SELECT n FROM c WHERE n < 0",
        f"{NUMBERS} SELECT group_concat(hex(zeroblob(9000))) FROM c",
        "SELECT COUNT(*) FROM " + ", ".join(f"singer AS s{n}" for n in range(40)),
    ],
)
def test_endless_queries_are_stopped(query: str) -> None:
    result = run_sql(SETUP, query, max_seconds=0.2)
    assert result == Result("timeout", error="stopped after 0.2 s")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (f"{NUMBERS} SELECT n FROM c", "more than 10000 rows"),
        ("SELECT zeroblob(1000000000)", "too big"),
        ("SELECT hex(randomblob(1000000000))", "too big"),
        ("SELECT replace(hex(zeroblob(40000)), '0', '00')", "too big"),
        (f"{NUMBERS} SELECT randomblob(90000) FROM c", "16777216 bytes"),
        (f"{NUMBERS} SELECT randomblob(90000) FROM c ORDER BY 1", "256 MiB"),
        # One instruction that loops for seconds: the clock is never looked at.
        ("SELECT printf('%.*c', 2000000000, 'x')", "not authorized to use function: printf"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "overflow"),
        ("SELECT " + "1 + " * 5000 + "1", "too large"),
        ("SELECT abs(-9223372036854775808)", "integer overflow"),
    ],
)
def test_greedy_queries_fail(query: str, error: str) -> None:
    result = run_sql(SETUP, query, max_seconds=20)
    assert result.status == "failed"
    assert error in str(result.error)


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE singer",
        "DELETE FROM singer",
        "INSERT INTO singer VALUES (4, 'x', 1)",
        "UPDATE singer SET id = 0",
        "CREATE TABLE other (id)",
        "PRAGMA table_info(singer)",
        "EXPLAIN SELECT 1",
        "BEGIN",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'copy.db'",
        "WITH a AS (SELECT 1) DELETE FROM singer",
        "WITH a AS (SELECT 1) INSERT INTO singer SELECT 1, 2, 3 FROM a",
        "SELECT load_extension('evil')",
        "SELECT writefile('out.txt', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_table_info('singer')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE singer",
        "SELECT 1;; ",
        "SELECT 1 \x00 FROM singer",
        "SELECT '\ud800'",
        "SELECT nothing FROM singer",
        "SELEC name FROM singer",
        "the names of all singers",
        "",
        "-- only a comment",
        "\x00",
    ],
)
def test_what_is_not_a_plain_query_fails_and_changes_nothing(
    query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with SqlSandbox(SETUP) as sandbox:
        before = sandbox.query("SELECT * FROM singer").rows
        result = sandbox.query(query)
        assert result.status == "failed"
        assert result.error
        assert result.rows == ()
        assert sandbox.query("SELECT * FROM singer").rows == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "setup",
    [
        "ATTACH 'other.db' AS other; CREATE TABLE other.t (a)",
        "VACUUM INTO 'copy.db'",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('evil')",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "CREATE TABLE t (a); DETACH main",
        "CREATE TABLE t (a",
        "nonsense",
        "CREATE TABLE t (a);\x00",
        "CREATE TABLE t (a); INSERT INTO t VALUES ('\ud800')",
        "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(1000000000))",
        f"CREATE TABLE t (a); {NUMBERS} INSERT INTO t SELECT n FROM c",
    ],
)
def test_a_bad_setup_is_refused(
    setup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError):
        SqlSandbox(setup, max_seconds=0.2)
    result = run_sql(setup, "SELECT 1", max_seconds=0.2)
    assert result.status == "failed"
    assert str(result.error).startswith("setup: ")
    assert list(tmp_path.iterdir()) == []


def test_setup_may_do_what_dumps_do() -> None:
    setup = """
    BEGIN TRANSACTION;
    CREATE TABLE a (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE);
    INSERT INTO a (name) VALUES ('x'), ('y');
    CREATE INDEX by_name ON a (name);
    CREATE VIEW names AS SELECT name FROM a;
    UPDATE a SET name = 'z' WHERE id = 2;
    DELETE FROM a WHERE id = 1;
    COMMIT;
    """
    assert run_sql(setup, "SELECT name FROM names").rows == (("z",),)


def test_broken_utf8_is_a_value_like_others() -> None:
    assert run_sql("", "SELECT CAST(x'61ff' AS TEXT)").rows == (("a\udcff",),)


def test_has_rows() -> None:
    empty = 'CREATE TABLE "a ""b" (c); CREATE TABLE d (e);'
    for setup, expected in (
        ("", False),
        (empty, False),
        (empty + "INSERT INTO d VALUES (NULL)", True),
        (empty + """INSERT INTO "a ""b" VALUES (1)""", True),
    ):
        with SqlSandbox(setup) as sandbox:
            assert sandbox.has_rows() is expected


def test_time_limit_counts_for_each_query_anew() -> None:
    with SqlSandbox(SETUP, max_seconds=0.2) as sandbox:
        for _ in range(2):
            assert sandbox.query(f"{NUMBERS} SELECT COUNT(*) FROM c").status == "timeout"
            assert sandbox.query("SELECT 1").rows == ((1,),)


@pytest.mark.parametrize("setup", [SETUP, "nonsense"])
def test_connection_is_closed_in_all_cases(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    connect = sqlite3.connect

    def recording(*args, **kwargs):
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(sql_sandbox.sqlite3, "connect", recording)
    run_sql(setup, "SELECT 1")
    assert len(opened) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened[0].execute("SELECT 1")
