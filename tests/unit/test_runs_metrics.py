"""metrics.jsonl: what a line holds, and going on after a crash."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tunesmith.runs.metrics import Line, MetricsLog, read_metrics

AGREED = {
    "kind",
    "step",
    "time",
    "loss",
    "learning_rate",
    "grad_norm",
    "tokens",
    "target_tokens",
    "step_seconds",
    "wait_seconds",
    "execution_accuracy",
    "exact_match",
}


def test_a_line_has_every_agreed_field(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "deep" / "metrics.jsonl")
    log.append(Line("train", 1, 2.5, 1e-3, 0.7, 100, 60, 0.5, 0.1))
    log.append(Line("eval", 1, 2.25, target_tokens=40))
    train, evaluated = read_metrics(tmp_path / "deep" / "metrics.jsonl")
    assert train.keys() == evaluated.keys() == AGREED
    assert train | {"time": None} == {
        "kind": "train",
        "step": 1,
        "time": None,
        "loss": 2.5,
        "learning_rate": 1e-3,
        "grad_norm": 0.7,
        "tokens": 100,
        "target_tokens": 60,
        "step_seconds": 0.5,
        "wait_seconds": 0.1,
        "execution_accuracy": None,
        "exact_match": None,
    }
    assert train["time"] > 1.7e9
    assert evaluated["learning_rate"] is None  # null, not absent


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    """JSON has no NaN; a reader in another language would fail on it."""
    log = MetricsLog(tmp_path / "m.jsonl")
    log.append(Line("train", 1, math.nan, 1e-3, math.inf))
    text = (tmp_path / "m.jsonl").read_text()
    line = json.loads(text, parse_constant=lambda name: 1 / 0)
    assert (line["loss"], line["grad_norm"], line["learning_rate"]) == (None, None, 1e-3)


def test_rewind_drops_later_lines_and_one_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    log = MetricsLog(path)
    for step in (1, 2, 3):
        log.append(Line("train", step, float(step)))
    log.append(Line("eval", 2, 9.0))
    whole = path.read_text().splitlines()
    path.write_text(path.read_text() + '{"kind": "train", "st')
    assert len(list(read_metrics(path))) == 4
    log.rewind(2)
    assert path.read_text().splitlines() == [whole[0], whole[1], whole[3]]
    log.append(Line("train", 3, 3.0))
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 2, 3]
    log.rewind(0)
    assert path.read_text() == ""


def test_rewind_without_a_file(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "m.jsonl").rewind(5)
    assert list(tmp_path.iterdir()) == []


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    MetricsLog(path).append(Line("train", 1, 1.0))
    before = path.read_bytes()
    other = MetricsLog(path, writes=False)
    other.append(Line("train", 2, 1.0))
    other.rewind(0)
    assert path.read_bytes() == before
