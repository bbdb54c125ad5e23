from __future__ import annotations

import hashlib
import json
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tunesmith.demo.generate import (
    TRAINING_DOMAINS,
    DemoFiles,
    heldout_rows,
    training_rows,
    write_demo_data,
)
from tunesmith.demo.phrasings import PHRASINGS
from tunesmith.demo.questions import KINDS
from tunesmith.demo.schemas_heldout import HELDOUT_DOMAINS
from tunesmith.demo.tables import Domain, fill, plural
from tunesmith.errors import UserError
from tunesmith.tasks.text_to_sql import SqlItem, score

# A change of these is a change of the data set: measure the demo again.
TRAIN_SHA256 = "984b136a152af0ab5d5044997838490ff4f5765264626d4aed25a957385cd97a"
HELDOUT_SHA256 = "b4304836214fc6a85a2d696a298c3c59de2417c30a5c6e8f7075197cd1cef9c3"
FIRST_HELDOUT_ROW = {
    "database": "deliveries",
    "kind": "group_having",
    "question": "Please list every city that has more than 2 parcels.",
    "schema": (
        "CREATE TABLE courier (id INTEGER, name TEXT, vehicle TEXT, age INTEGER);\n"
        "CREATE TABLE parcel (id INTEGER, code TEXT, city TEXT, weight INTEGER, fee INTEG"
        "ER, courier_id INTEGER);"
    ),
    "setup": (
        "CREATE TABLE courier (id INTEGER, name TEXT, vehicle TEXT, age INTEGER);\n"
        "CREATE TABLE parcel (id INTEGER, code TEXT, city TEXT, weight INTEGER, fee INTEG"
        "ER, courier_id INTEGER);\n"
        "INSERT INTO courier VALUES (1, 'Carl Dunn', 'van', 27), (2, 'Gus Hahn', 'van', 3"
        "7), (3, 'Bella Knox', 'van', 29), (4, 'Igor Zorin', 'bike', 25), (5, 'Eli Stern'"
        ", 'van', 32), (6, 'Abel Cruz', 'van', 48), (7, 'Hedy Lamm', 'scooter', 49), (8, "
        "'Dora Weiss', 'van', 57), (9, 'Fay Moreau', 'scooter', 56);\n"
        "INSERT INTO parcel VALUES (1, 'PX33', 'Porto', 9, 49, 7), (2, 'PX27', 'Oslo', 34"
        ", 11, 2), (3, 'PX49', 'Graz', 4, 47, 6), (4, 'PX81', 'Oslo', 31, 46, 3), (5, 'PX"
        "56', 'Oslo', 8, 58, 1), (6, 'PX75', 'Porto', 24, 33, 8), (7, 'PX10', 'Lyon', 11,"
        " 27, 2), (8, 'PX63', 'Graz', 42, 55, 6), (9, 'PX70', 'Graz', 35, 69, 7), (10, 'P"
        "X21', 'Oslo', 39, 19, 7), (11, 'PX42', 'Porto', 14, 42, 1), (12, 'PX14', 'Oslo',"
        " 44, 31, 7), (13, 'PX38', 'Lyon', 22, 70, 2);"
    ),
    "sql": "SELECT city FROM parcel GROUP BY city HAVING COUNT(*) > 2",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DemoFiles:
    return write_demo_data(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def train(files: DemoFiles) -> list[dict]:
    return [json.loads(line) for line in files.train.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def heldout(files: DemoFiles) -> list[dict]:
    return [json.loads(line) for line in files.heldout.read_text("utf-8").splitlines()]


def rows_of(setup: str, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(setup)
        return connection.execute(sql).fetchall()


def words(template: str) -> list[str]:
    """A template without what does not make it another phrasing: case and punctuation."""
    return re.sub(r"[^\w{} ]", " ", template).lower().split()


def word_edits(left: list[str], right: list[str]) -> int:
    """How many words must be added, dropped or replaced (Levenshtein distance)."""
    distances = list(range(len(right) + 1))
    for i, word in enumerate(left, 1):
        diagonal, distances[0] = distances[0], i
        for j, other in enumerate(right, 1):
            best = min(distances[j] + 1, distances[j - 1] + 1, diagonal + (word != other))
            diagonal, distances[j] = distances[j], best
    return distances[-1]


def test_same_seed_same_bytes(files: DemoFiles) -> None:
    """The figures of the demo are comparable only on the very same rows."""
    assert hashlib.sha256(files.train.read_bytes()).hexdigest() == TRAIN_SHA256
    assert hashlib.sha256(files.heldout.read_bytes()).hexdigest() == HELDOUT_SHA256


def test_another_seed_gives_other_rows() -> None:
    assert list(heldout_rows(0, 20)) != list(heldout_rows(1, 20))
    assert list(training_rows(0, 5, 3)) != list(training_rows(1, 5, 3))


def test_fewer_heldout_questions_are_a_prefix() -> None:
    assert list(heldout_rows(0, 30)) == list(heldout_rows(0, 60))[:30]


def test_heldout_row_as_written() -> None:
    (row,) = heldout_rows(0, 1)
    assert row == FIRST_HELDOUT_ROW


def test_schemas_are_enough_and_small() -> None:
    assert len(TRAINING_DOMAINS) == 26
    assert len(HELDOUT_DOMAINS) == 8
    for domain in TRAINING_DOMAINS + HELDOUT_DOMAINS:
        assert 2 <= len(domain.tables) <= 3, domain.name
        for table in domain.tables:
            assert 8 <= len(table.label.choices) <= 15, (domain.name, table.name)
            assert len(set(table.label.choices)) == len(table.label.choices), table.name


def test_heldout_schemas_are_unseen_in_training() -> None:
    def tables(domains: tuple[Domain, ...]) -> set[str]:
        return {table.name for domain in domains for table in domain.tables}

    names = [domain.name for domain in TRAINING_DOMAINS + HELDOUT_DOMAINS]
    assert len(set(names)) == len(names)
    assert not tables(TRAINING_DOMAINS) & tables(HELDOUT_DOMAINS)


def test_no_heldout_schema_or_question_is_in_the_training_file(
    train: list[dict], heldout: list[dict]
) -> None:
    text = "\n".join(message["content"] for row in train for message in row["messages"])
    assert not [row["database"] for row in heldout if row["schema"] in text]
    assert not [row["question"] for row in heldout if row["question"] in text]


def test_phrasings_of_the_two_parts_are_disjoint() -> None:
    training = [words(t) for phrasings in PHRASINGS.values() for t in phrasings.training]
    for phrasings in PHRASINGS.values():
        for template in phrasings.heldout:
            nearest = min(training, key=lambda other: word_edits(words(template), other))
            assert word_edits(words(template), nearest) >= 2, (template, nearest)


def test_every_kind_has_its_phrasings() -> None:
    assert PHRASINGS.keys() == KINDS.keys()
    for kind, phrasings in PHRASINGS.items():
        assert len(set(phrasings.training)) == len(phrasings.training) >= 11, kind
        assert len(set(phrasings.heldout)) == len(phrasings.heldout) == 4, kind


def test_every_heldout_question_comes_from_a_heldout_phrasing(heldout: list[dict]) -> None:
    def matches(template: str, question: str) -> bool:
        pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))
        return re.fullmatch(re.sub(r"(\\ )a(\\ )", r"\1an?\2", pattern), question) is not None

    for row in heldout:
        templates = PHRASINGS[row["kind"]].heldout
        assert any(matches(template, row["question"]) for template in templates), row["question"]


def test_every_gold_query_gives_values(heldout: list[dict]) -> None:
    for row in heldout:
        result = rows_of(row["setup"], row["sql"])
        assert result, row["sql"]
        assert all(cell is not None for cells in result for cell in cells), row["sql"]


def test_every_training_query_gives_values(train: list[dict]) -> None:
    rng = random.Random("0:training")
    databases = {database.schema: database for database in (fill(d, rng) for d in TRAINING_DOMAINS)}
    for row in train:
        schema = row["messages"][0]["content"].split("\n\n")[0]
        for message in row["messages"][1::2]:
            result = rows_of(databases[schema].setup, message["content"])
            assert result, message["content"]
            assert all(cell is not None for cells in result for cell in cells), message["content"]


def test_dropping_the_where_changes_the_result(heldout: list[dict]) -> None:
    filtered = [row for row in heldout if " WHERE " in row["sql"]]
    assert len(filtered) >= len(heldout) / 3
    for row in filtered:
        unfiltered = row["sql"].split(" WHERE ")[0]
        assert rows_of(row["setup"], row["sql"]) != rows_of(row["setup"], unfiltered), row["sql"]


def test_each_of_two_conditions_is_needed(heldout: list[dict]) -> None:
    for row in (row for row in heldout if row["kind"] == "two_conditions"):
        select, conditions = row["sql"].split(" WHERE ")
        for condition in conditions.split(" AND "):
            weaker = f"{select} WHERE {condition}"
            assert rows_of(row["setup"], row["sql"]) != rows_of(row["setup"], weaker), row["sql"]


def test_no_gold_answer_hangs_on_a_tie(heldout: list[dict]) -> None:
    """One more row of a LIMIT query has another sort key, so no row is left out by chance."""
    limited = [row for row in heldout if " LIMIT " in row["sql"]]
    assert len(limited) >= 20
    for row in limited:
        sql = re.sub(r"^SELECT .*? FROM ", "SELECT {} FROM ", row["sql"]).split(" LIMIT ")[0]
        key = re.search(r"ORDER BY (\S+)", sql).group(1)  # type: ignore[union-attr]
        keys = [cells[0] for cells in rows_of(row["setup"], sql.format(key))]
        limit = int(row["sql"].split(" LIMIT ")[1])
        assert len(keys) == limit or keys[limit - 1] != keys[limit], row["sql"]


def test_values_stand_literally_in_the_question(heldout: list[dict]) -> None:
    for row in heldout:
        for literal in re.findall(r"'([^']*)'|\b(\d+(?:\.\d+)?)\b", row["sql"]):
            value = literal[0] or literal[1]
            if row["sql"].endswith(" LIMIT 1") and value == "1":
                continue
            assert value in row["question"], row


def test_gold_scores_as_right(heldout: list[dict]) -> None:
    items = [
        SqlItem(str(n), row["schema"], row["sql"], row["sql"], row["setup"])
        for n, row in enumerate(heldout)
    ]
    report = score(items)
    assert report.execution_accuracy == 1.0
    assert report.measurable == report.total == 200


def test_kinds_and_schemas_have_equal_shares(heldout: list[dict]) -> None:
    assert set(Counter(row["kind"] for row in heldout).values()) == {11, 12}
    schemas = Counter(row["database"] for row in heldout)
    assert len(schemas) == 8
    assert min(schemas.values()) >= 24


def shape(sql: str) -> str:
    """A query's keywords, the four aggregates and both directions taken as one."""
    keywords = re.findall(r"[A-Z]{2,}(?![\w'])", re.sub(r"'[^']*'| DESC| ASC", "", sql))
    return re.sub("MIN|MAX|AVG|SUM", "AGGREGATE", " ".join(keywords))


def test_first_turns_ask_every_kind(train: list[dict]) -> None:
    """Held-out questions are always first turns: no kind may be learned in later turns alone."""
    openings = Counter(shape(row["messages"][1]["content"]) for row in train)
    one = len(train) / 23  # 18 kinds, of which five count twice
    # Lookup and the filters share a shape, superlative and top_n another; join_aggregate has two.
    assert len(openings) == 16
    assert openings["SELECT FROM WHERE"] == pytest.approx(3 * one, abs=3)
    assert openings["SELECT FROM JOIN ON WHERE"] == pytest.approx(2 * one, abs=2)
    assert openings["SELECT FROM WHERE NOT IN SELECT FROM"] == pytest.approx(2 * one, abs=2)
    assert min(openings.values()) >= 2


def test_conversation_form(train: list[dict]) -> None:
    assert len(train) == 120
    for row in train:
        assert row.keys() == {"messages"}
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * 6
        assert row["messages"][0]["content"].startswith("CREATE TABLE ")
        assert "CREATE TABLE" not in row["messages"][2]["content"]


def test_no_training_question_repeats() -> None:
    """At least 3,000 different questions are there to be drawn."""
    seen = set()
    for row in training_rows(0, 500, 6):
        schema, first = row["messages"][0]["content"].split("\n\n")
        for question in [first, *(m["content"] for m in row["messages"][2::2])]:
            assert (schema, question) not in seen
            seen.add((schema, question))
    assert len(seen) == 3000


def test_asking_for_too_many_questions_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="that many different questions"):
        write_demo_data(tmp_path, train_conversations=1, heldout_questions=100_000)


def test_files_are_utf8_with_sorted_keys_and_bare_newlines(files: DemoFiles) -> None:
    for path in (files.train, files.heldout):
        data = path.read_bytes()
        assert b"\r" not in data
        assert data.endswith(b"}\n")
        for line in data.decode("utf-8").splitlines():
            row = json.loads(line)
            assert line == json.dumps(row, ensure_ascii=False, sort_keys=True)


def test_gold_style_is_canonical(train: list[dict], heldout: list[dict]) -> None:
    golds = [m["content"] for row in train for m in row["messages"][1::2]]
    golds += [row["sql"] for row in heldout]
    for sql in golds:
        assert sql.startswith("SELECT ")
        assert not re.search(r";|\"|\bAS\b|\n|  ", sql), sql


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("country", "countries"),
        ("birth year", "birth years"),
        ("branch", "branches"),
        ("dish", "dishes"),
        ("play", "plays"),
        ("climate", "climates"),
    ],
)
def test_plural(word: str, expected: str) -> None:
    assert plural(word) == expected
