"""Runs that the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_run import tunesmith, write_lines, write_recipe

SQL_ROW = {
    "question": "the max age?",
    "context": "CREATE TABLE t (age INT)",
    "sql": "SELECT max(age) FROM t",
    "setup": "CREATE TABLE t (age INT); INSERT INTO t VALUES (3), (7)",
}
QUESTION = f"{SQL_ROW['context']}\n{SQL_ROW['question']}"
ANSWER = SQL_ROW["sql"]


@pytest.fixture(scope="session", autouse=True)
def _proof_by_numpy_alone() -> Iterator[None]:
    """Importing torch takes ten seconds for each export; the parity tests have it read them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunesmith.export.find_spec", lambda name: None)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model."""
    return write_tiny_gemma3(tmp_path_factory.mktemp("model") / "tiny")


def sql_sections() -> dict[str, Any]:
    """A recipe that learns one conversation by heart and is asked that question."""
    return {
        "data": {
            "train": {"files": ["train.jsonl"], "format": "chat"},
            "eval": {
                "files": ["eval.jsonl"],
                "format": "template",
                "template": {"user": "{context}\n{question}", "assistant": "{sql}"},
            },
            "max_length": 64,
        },
        "train": {"batch_size": 1, "epochs": 40.0, "learning_rate": 0.003, "log_every": 10},
        "eval": {
            "every_steps": 20,
            "prompts": [QUESTION],
            "text_to_sql": {"setup": "setup"},
            "generation": {"max_new_tokens": 32},
        },
    }


def write_sql_rows(folder: Path) -> None:
    """The conversation, and the question with its tables."""
    folder.mkdir(exist_ok=True)
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": ANSWER},
    ]
    write_lines(folder / "train.jsonl", [{"messages": messages}])
    write_lines(folder / "eval.jsonl", [SQL_ROW])


@pytest.fixture(scope="session")
def overfit(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run of a model that knows one answer by heart."""
    folder = tmp_path_factory.mktemp("overfit")
    write_sql_rows(folder)
    sections = sql_sections()
    sections["eval"]["text_to_sql"]["rows_while_training"] = 1
    sections["run"] = {"dir": str(folder / "run"), "tensorboard": True}
    recipe = write_recipe(folder, tiny, **sections)
    assert tunesmith("train", recipe) == 0
    return folder / "run"
