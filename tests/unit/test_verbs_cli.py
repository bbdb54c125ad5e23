"""The command line: exit statuses, messages, flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_run import tunesmith, write_recipe
from tunesmith import __version__
from tunesmith.cli import main
from tunesmith.errors import Diverged, UserError
from tunesmith.report import summary_lines

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        (UserError("rows.jsonl:7: no text", "Name the field."), 2, "rows.jsonl:7: no text"),
        (Diverged("step 3: loss nan", "Lower it."), 3, "step 3: loss nan"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on"),
    ],
)
def test_exit_statuses(
    raised: BaseException,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("tunesmith.train.train_recipe", fails)
    assert main(["train", "demo"]) == status
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""
    if isinstance(raised, UserError):
        assert captured.err == f"error: {raised.message}\n  {raised.hint}\n"


def test_a_bug_of_ours_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python then ends with status 1."""
    monkeypatch.setattr("tunesmith.train.train_recipe", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "demo"])


def test_bad_usage_is_bad_input(capsys: Captured) -> None:
    for arguments in (["fly"], [], ["train"], ["export", "run"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "usage: tunesmith" in capsys.readouterr().err


def test_version(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tunesmith {__version__}\n"


@pytest.mark.parametrize("verb", ["train", "inspect", "evaluate"])
def test_a_recipe_that_is_not_there(verb: str, tmp_path: Path, capsys: Captured) -> None:
    missing = tmp_path / "mine.yaml"
    assert main([verb, str(missing)]) == 2
    assert f"error: {missing}" in capsys.readouterr().err


def test_half_precision_is_refused_before_anything_loads(tmp_path: Path, capsys: Captured) -> None:
    """G14: Gemma's activations exceed float16's range."""
    recipe = write_recipe(tmp_path, tmp_path / "no-model", train={"compute_dtype": "float16"})
    assert tunesmith("train", recipe) == 2
    error = capsys.readouterr().err
    assert "train.compute_dtype: Gemma's activations exceed float16's range" in error


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--top-p", "3", "--top-p 3.0: input should be less than or equal to 1"),
        ("--top-k", "0", "--top-k 0: input should be greater than 0"),
        ("--temperature", "-1", "--temperature -1.0: input should be greater than or equal to 0"),
        ("--max-new-tokens", "0", "--max-new-tokens 0: input should be greater than 0"),
        ("--seed", "-2", "--seed -2: input should be greater than or equal to 0"),
    ],
)
def test_flags_out_of_range(flag: str, value: str, told: str, capsys: Captured) -> None:
    assert main(["generate", "model", "--prompt", "x", flag, value]) == 2
    assert told in capsys.readouterr().err


def test_inspect_shows_rows_and_figures(tmp_path: Path, capsys: Captured) -> None:
    recipe = write_recipe(tmp_path, write_tiny_gemma3(tmp_path / "tiny"))
    assert tunesmith("inspect", recipe, "--rows", "1") == 0
    out = capsys.readouterr().out
    assert "train, example 1 of 16:" in out
    assert "<bos> «" in out
    assert "steps per epoch: 4, batches of 4 sequences of 32 tokens" in out
    assert not (tmp_path / "run").exists()


def test_a_model_directory_that_is_none(tmp_path: Path, capsys: Captured) -> None:
    recipe = write_recipe(tmp_path, tmp_path / "nothing")
    assert tunesmith("train", recipe) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_rows_longer_than_the_models_positions(tmp_path: Path, capsys: Captured) -> None:
    tiny = write_tiny_gemma3(tmp_path / "tiny", max_position=16)
    assert tunesmith("train", write_recipe(tmp_path, tiny)) == 2
    error = capsys.readouterr().err
    assert "data.max_length 32 is above the model's 16 positions" in error


# --- the result for people -----------------------------------------------------------------------

SUMMARY = {
    "before": {"loss": 3.25, "exact_match": 0.0, "execution_accuracy": None},
    "after": {"loss": 1.5, "exact_match": 0.625, "execution_accuracy": None},
    "tokens_per_second": 1234.5,
    "target_tokens": 98765,
    "peak_bytes": 3 * 2**30,
    "seconds": 301.2,
    "export": {"path": "runs/a/export", "max_logit_gap": 2.5e-5},
}


def test_a_summary_is_a_small_table() -> None:
    assert summary_lines(SUMMARY) == [
        "                              before       after",
        "loss                          3.2500      1.5000",
        "exact match                     0.0%       62.5%",
        "training tokens/s                          1,234",
        "target tokens                             98,765",
        "peak memory                              3.0 GiB",
        "seconds                                      301",
        "export                             runs/a/export",
        "largest logit gap                        2.5e-05",
    ]


def test_what_is_missing_is_left_out() -> None:
    nothing = dict.fromkeys(SUMMARY["before"])
    summary = dict.fromkeys(SUMMARY) | {
        "before": SUMMARY["before"],
        "after": nothing,
        "export": {"path": None, "max_logit_gap": None},
    }
    assert [line.split() for line in summary_lines(summary)[1:]] == [
        ["loss", "3.2500", "-"],
        ["exact", "match", "0.0%", "-"],
    ]
