"""Whole commands in processes of their own, alone and as two hosts of one run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny_engine import largest_gap
from tests.tiny_run import (
    ROOT,
    read_lines,
    read_summary,
    start_tunesmith,
    tunesmith,
    write_lines,
    write_recipe,
)
from tunesmith.engines.jax.session import open_trainer
from tunesmith.recipe.load import load_recipe
from tunesmith.runs.rundir import RunDir

LIMIT = 150  # seconds that nothing here takes, unless it hangs


def figures(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the times."""
    timed = {"time", "step_seconds", "wait_seconds"}
    return [{k: line[k] for k in line.keys() - timed} for line in read_lines(run / "metrics.jsonl")]


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- one process ---------------------------------------------------------------------------------


def test_bad_input_ends_with_2_and_no_traceback(tiny: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny, data={"train": {"files": ["none.jsonl"]}})
    process = start_tunesmith("train", recipe)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: ")
    assert "data.train.format" in err
    assert "Traceback" not in err


def test_divergence_ends_with_3(tiny: Path, tmp_path: Path) -> None:
    process = start_tunesmith(
        "train", write_recipe(tmp_path, tiny), "--set", "train.learning_rate=3e38"
    )
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 3
    assert "error: step 2: loss" in err
    assert "Traceback" not in err
    assert "step 1/4" in out


LONG = {"train": {"epochs": 20.0, "checkpoints": {"every_steps": 5}}, "run": {"export": "none"}}


def test_a_killed_run_goes_on_as_if_nothing_had_been(tiny: Path, tmp_path: Path) -> None:
    """G22: killed without warning in a later epoch; figures then equal an unbroken run's."""
    recipe = write_recipe(tmp_path, tiny, **LONG)
    killed, whole = tmp_path / "run", tmp_path / "whole"
    process = start_tunesmith("train", recipe)
    metrics = killed / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 10, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert not (killed / "summary.json").exists()  # it was killed in time
    assert tunesmith("train", recipe) == 0
    assert tunesmith("train", recipe, "--set", f"run.dir={whole}") == 0
    assert figures(killed) == figures(whole)
    assert [line["step"] for line in figures(killed)] == list(range(1, 81))
    ours, theirs = read_summary(killed), read_summary(whole)
    assert ours["target_tokens"] == theirs["target_tokens"]
    assert ours["steps"] == theirs["steps"] == 80


def test_ctrl_c_ends_with_130(tiny: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny, **LONG)
    process = start_tunesmith("train", recipe)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "interrupted; the same command goes on from the last checkpoint" in err
    assert "Traceback" not in err


# --- two processes -------------------------------------------------------------------------------

# Runs a command and tells which files below a folder Python opened to write, made or renamed.
WATCHED = """
import atexit, json, sys
folder, told = sys.argv[1], []

def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if not (flags or 0) & 3:  # O_WRONLY, O_RDWR
            return
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
        path = arguments[0]
    else:
        return
    if str(path).startswith(folder):
        told.append(f"{event} {path}")

sys.addaudithook(hook)
from tunesmith.cli import main
status = main(sys.argv[2:])
print(json.dumps(told))
sys.exit(status)
"""


def start_host(index: int, port: int, recipe: Path, run: Path) -> subprocess.Popen[str]:
    variables = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(index),
    }
    return subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(run), "train", str(recipe)],
        env=os.environ | variables,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def trained_weights(recipe: Path, run: Path, tiny: Path) -> dict[str, np.ndarray]:
    session = open_trainer(load_recipe(recipe).recipe, tiny)
    session.take_weights(RunDir(run), lambda line: None, use_best=False)
    return {name: np.asarray(array) for name, array in session.trainable.items()}


def test_two_hosts_with_unequal_rows_train_like_one(tiny: Path, tmp_path: Path) -> None:
    """G9, G37: 23 rows of 3 to 200 tokens, 20 a step: 13 for one host and 10 for the other.

    Both end at the same step with status 0, with the losses and weights of a single process; only
    the first writes.
    """
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("aeiou"), length)) for length in range(2, 200, 9)]
    write_lines(tmp_path / "train.jsonl", [{"text": text} for text in [*letters, "q" * 190]])
    train = {"batch_size": 20, "epochs": 2.0, "optimizer": {"eps": 1e-5}}
    sections = {
        "data": {
            "max_length": 200,
            "eval": {"files": ["train.jsonl"], "format": "text", "limit": 5},
        },
        "train": train,
        "eval": {"every_steps": 2, "batch_size": 4},
        "run": {"dir": str(tmp_path / "two"), "export": "none", "use_best": False},
    }
    recipe = write_recipe(tmp_path, tiny, **sections)
    port, two, one = free_port(), tmp_path / "two", tmp_path / "one"
    with start_host(0, port, recipe, two) as first, start_host(1, port, recipe, two) as second:
        hosts = (first, second)
        try:
            ended = [host.communicate(timeout=LIMIT) for host in hosts]
        finally:
            for host in hosts:
                host.kill()  # one that waits for the other
    assert [host.returncode for host in hosts] == [0, 0], ended
    assert ["step 4/4" in out for out, _ in ended] == [True, False]  # one speaks
    assert not any("Traceback" in err for _, err in ended)
    written, by_other = (json.loads(out.splitlines()[-1]) for out, _ in ended)
    assert any("metrics.jsonl" in told for told in written)
    # Orbax has every process describe its own part of a checkpoint.
    assert [told for told in by_other if "/checkpoints/" not in told] == []

    alone = ["--set", f"run.dir={one}", "--set", "train.micro_batch_size=10"]
    assert tunesmith("train", recipe, *alone) == 0
    assert len(figures(two)) == 6
    for ours, theirs in zip(figures(two), figures(one), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert read_summary(two)["target_tokens"] == read_summary(one)["target_tokens"]
    assert read_summary(two)["after"] == pytest.approx(read_summary(one)["after"], abs=1e-5)
    weights = trained_weights(recipe, two, tiny)
    assert largest_gap(weights, trained_weights(recipe, one, tiny)) < 1e-5
