"""TensorBoard's event files: the lines of metrics.jsonl, each once, however often a run goes on."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from tests.event_files import read_events, read_scalars
from tests.tiny import write_tiny_gemma3
from tests.tiny_run import tunesmith, write_recipe
from tunesmith.runs.metrics import Line, MetricsLog
from tunesmith.runs.tensorboard import EventFiles


def open_log(folder: Path, *, writes: bool = True) -> MetricsLog:
    board = EventFiles(folder / "tensorboard")
    return MetricsLog(folder / "metrics.jsonl", writes=writes, board=board)


def losses(folder: Path) -> list[tuple[int, float]]:
    return [
        (step, value)
        for tag, step, value in read_scalars(folder / "tensorboard")
        if tag == "train/loss"
    ]


def test_every_figure_has_its_tag(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(Line("train", 10, 2.5, 0.25, 0.75, tokens=100, step_seconds=0.5, time=1e9))
    log.append(Line("eval", 10, 2.25, target_tokens=40, execution_accuracy=0.5, exact_match=0.25))
    log.append(Line("eval", 20, 1.25, target_tokens=40))
    log.close()
    assert read_scalars(tmp_path / "tensorboard") == [
        ("train/loss", 10, 2.5),
        ("train/learning_rate", 10, 0.25),
        ("train/grad_norm", 10, 0.75),
        ("train/tokens_per_second", 10, 200.0),
        ("eval/loss", 10, 2.25),
        ("eval/execution_accuracy", 10, 0.5),
        ("eval/exact_match", 10, 0.25),
        ("eval/loss", 20, 1.25),
    ]
    times = [e.wall_time for e in read_events(tmp_path / "tensorboard") if e.summary.value]
    assert times[0] == 1e9


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(Line("train", 1, math.nan, 0.5, math.inf))
    log.close()
    assert read_scalars(tmp_path / "tensorboard") == [("train/learning_rate", 1, 0.5)]


def test_a_run_that_goes_on_doubles_nothing(tmp_path: Path) -> None:
    """Steps behind the checkpoint are taken again: their first figures are gone."""
    log = open_log(tmp_path)
    log.rewind(0)
    for step in (1, 2, 3):
        log.append(Line("train", step, float(step)))
    log.close()
    for _ in range(2):
        log = open_log(tmp_path)
        log.rewind(2)
        for step in (3, 4):
            log.append(Line("train", step, 10.0 + step))
        log.close()
    assert losses(tmp_path) == [(1, 1.0), (2, 2.0), (3, 13.0), (4, 14.0)]


def test_lines_lost_by_a_killed_process_come_back(tmp_path: Path) -> None:
    """metrics.jsonl is written line by line, event files are not."""
    log = open_log(tmp_path)
    for step in (1, 2):
        log.append(Line("train", step, float(step)))
    log.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-30])
    log = open_log(tmp_path)
    log.rewind(2)
    log.close()
    assert losses(tmp_path) == [(1, 1.0), (2, 2.0)]


def test_a_tensorboard_that_looks_on_forgets_the_old_files(tmp_path: Path) -> None:
    """Its mark is an event with the status START at the step from which it is to forget."""
    log = open_log(tmp_path)
    log.append(Line("train", 1, 1.0))
    log.close()
    marks = [(e.step, e.session_log.status) for e in read_events(tmp_path / "tensorboard")]
    assert (0, 1) in marks[:3]


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, writes=False)
    log.append(Line("train", 1, 1.0))
    log.rewind(0)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_told_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    model = write_tiny_gemma3(tmp_path / "model")
    recipe = write_recipe(tmp_path / "rows", model, run={"tensorboard": True})
    assert tunesmith("train", recipe) == 2
    captured = capsys.readouterr()
    assert "run.tensorboard needs the package tensorboardX" in captured.err
    assert "pip install 'tunesmith[tensorboard]'" in captured.err
    assert "loading the model" not in captured.out
