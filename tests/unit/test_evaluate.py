"""What is asked of a model while it is measured: which rows, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.data_recipe import write_rows
from tests.tiny import write_tiny_tokenizer
from tests.tiny_engine import collect, tiny_recipe
from tunesmith.data.dataset import prepare
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.contract import Completion
from tunesmith.errors import UserError
from tunesmith.evaluate import answer_prompts, check_sql_fields, measure_while_training
from tunesmith.generate import converse, open_speaker
from tunesmith.recipe.load import dump_recipe
from tunesmith.runs.rundir import RunDir, write_json, write_text

SQL = "SELECT a FROM t"
SETUP = "CREATE TABLE t (a INT); INSERT INTO t VALUES (1)"


class Parrot:
    """A session that gives prepared answers and keeps what it was asked."""

    def __init__(self, tokenizer: Tokenizer, answers: Sequence[str]) -> None:
        self._tokenizer, self._answers = tokenizer, answers
        self.asked: list[str] = []

    def generate(self, prompts: Sequence[np.ndarray], settings: Any, **_: Any) -> list[Completion]:
        texts = [self._tokenizer.decode(ids, skip_special=False) for ids in prompts]
        answers = self._answers[len(self.asked) :]
        self.asked += texts
        return [
            Completion(np.array(self._tokenizer.encode(answer)), True)
            for answer, _ in zip(answers, texts, strict=False)
        ]


def sql_setup(folder: Path, tokenizer: Tokenizer, *, count: int, **scored: Any) -> Any:
    """A recipe and data of so many questions, `question 0` and on."""
    rows = [
        {"question": f"question {n}", "context": SETUP, "sql": SQL, "answer": SQL}
        for n in range(count)
    ]
    write_rows(folder / "rows.jsonl", rows)
    template = {"system": "Answer in SQL.", "user": "{question}", "assistant": "{answer}"}
    some = {"files": ["rows.jsonl"], "format": "template", "template": template}
    recipe = tiny_recipe(
        folder,
        data={"train": some, "eval": some, "max_length": 64},
        eval={"every_steps": 5, "text_to_sql": scored, "prompts": ["question 7"]},
    )
    return recipe, prepare(recipe, tokenizer, base_dir=folder)


def test_the_first_rows_are_scored_while_training(tmp_path: Path, tokenizer: Tokenizer) -> None:
    recipe, data = sql_setup(tmp_path, tokenizer, count=4, rows_while_training=2)
    parrot: Any = Parrot(tokenizer, [SQL, "SELECT 5 AS a FROM t", "SELECT max(a) FROM t", "no"])
    measure = measure_while_training(parrot, recipe, data, tokenizer, collect()[1])
    assert measure is not None
    assert measure() == {"execution_accuracy": 0.5, "exact_match": 0.5}
    assert [text.count("question") for text in parrot.asked] == [1, 1]
    assert "question 0" in parrot.asked[0]
    assert measure() == {"execution_accuracy": 0.5, "exact_match": 0.0}  # asks the model anew


def test_what_cannot_be_measured_is_left_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """No rows in the tables: nothing can be said of execution."""
    recipe, data = sql_setup(tmp_path, tokenizer, count=1, rows_while_training=1, setup="question")
    parrot: Any = Parrot(tokenizer, [SQL])
    measure = measure_while_training(parrot, recipe, data, tokenizer, collect()[1])
    assert measure is not None
    assert measure() == {"exact_match": 1.0}


def test_without_rows_the_loss_is_all(tmp_path: Path, tokenizer: Tokenizer) -> None:
    recipe, data = sql_setup(tmp_path, tokenizer, count=1)
    session: Any = None
    assert measure_while_training(session, recipe, data, tokenizer, collect()[1]) is None


def test_fields_of_all_scored_rows_are_checked(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Also of those that are scored while training alone."""
    recipe, data = sql_setup(tmp_path, tokenizer, count=3, rows=1, rows_while_training=3)
    check_sql_fields(recipe, data)
    rows = (tmp_path / "rows.jsonl").read_text().replace('"sql": ', '"query": ', 3)
    first, rest = rows.split("\n", 1)
    (tmp_path / "rows.jsonl").write_text(first.replace("query", "sql") + "\n" + rest)
    data = prepare(recipe, tokenizer, base_dir=tmp_path)
    with pytest.raises(UserError, match=r"rows.jsonl:2: no text in field 'sql'"):
        check_sql_fields(recipe, data)


def test_prompts_follow_the_system_message_of_the_training_rows(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """A prompt is asked exactly as a training row's question is."""
    recipe, data = sql_setup(tmp_path, tokenizer, count=8)
    parrot: Any = Parrot(tokenizer, ["yes"])
    assert answer_prompts(parrot, recipe, data, tokenizer) == ["yes"]
    trained = tokenizer.decode(data.train.example(7).ids, skip_special=False)
    (asked,) = parrot.asked
    assert "Answer in SQL." in asked
    assert trained.removeprefix("<bos>").startswith(asked.removeprefix("<bos>"))
    assert "question 7" in trained


def test_a_run_is_spoken_to_as_it_was_trained(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tunesmith generate RUN` puts the system message in front too, of each conversation once."""
    recipe, data = sql_setup(tmp_path, tokenizer, count=1)
    run = RunDir(tmp_path / "run")
    write_text(run.recipe, dump_recipe(recipe))
    write_json(run.manifest, {"base_dir": str(tmp_path)})
    write_text(run.export / "chat_template.jinja", data.template.source)
    write_tiny_tokenizer(run.export)
    parrot = Parrot(tokenizer, ["one", "two", "three"])
    engine = SimpleNamespace(start=lambda: True, open_session=lambda *_, **__: parrot)
    monkeypatch.setattr("tunesmith.generate.load_engine", lambda _: engine)
    speaker = open_speaker(str(run.path), None, collect()[1])
    lines = ["first", "second", "/new", "third"]
    said, say = collect()

    def read() -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    converse(speaker, read, say)
    assert said == ["one", "two", "three"]
    assert [text.count("Answer in SQL.") for text in parrot.asked] == [1, 1, 1]
    assert [("first" in text, "second" in text) for text in parrot.asked] == [
        (True, False),
        (True, True),
        (False, False),
    ]
