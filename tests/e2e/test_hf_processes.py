"""The Hugging Face engine in several processes, with real FSDP2 over gloo."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.fsdp_on_cpu import ROOT, finish, start_processes
from tests.tiny import write_tiny_gemma3
from tests.tiny_gemma4 import write_tiny_gemma4
from tests.tiny_run import read_lines, read_summary, sentences, tunesmith, write_lines, write_recipe

pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = pytest.mark.parity

LIMIT = 420  # seconds that nothing here takes, unless it hangs
STEPS = 8
ALONE = ["--set", "parallel.fsdp=1", "--set", "train.micro_batch_size=null"]


def recipe_of(folder: Path, model: Path, **sections: Any) -> Path:
    """Rows of unequal length, two processes with two passes each, evaluated and exported."""
    folder.mkdir(exist_ok=True)
    rows = [{"text": text} for text in sentences(40, longest=20)]
    write_lines(folder / "train.jsonl", rows)
    write_lines(folder / "eval.jsonl", [{"text": text} for text in sentences(7, seed=1)])
    values: dict[str, Any] = {
        "engine": "hf",
        "data": {"max_length": 64, "eval": {"files": ["eval.jsonl"], "format": "text"}},
        "train": {
            "batch_size": 4,
            "micro_batch_size": 1,
            "epochs": 6.0,
            "max_steps": STEPS,
            "learning_rate": 0.001,
            "optimizer": {"eps": 1e-5},
            "checkpoints": {"every_steps": 2},
        },
        "eval": {"every_steps": 4, "batch_size": 3, "prompts": ["once upon"]},
        "parallel": {"fsdp": 2},
        "run": {"dir": str(folder / "two")},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return write_recipe(folder, model, **values)


def figures(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times, and without what was not measured."""
    timed = {"time", "step_seconds", "wait_seconds"}
    return [
        {name: value for name, value in line.items() if name not in timed and value is not None}
        for line in read_lines(run / "metrics.jsonl")
    ]


def train_alone(recipe: Path, run: Path, *more: str) -> None:
    assert tunesmith("train", recipe, "--set", f"run.dir={run}", *ALONE, *more) == 0


def assert_same_figures(ours: Path, theirs: Path) -> None:
    assert len(figures(ours)) == len(figures(theirs))
    for one, other in zip(figures(ours), figures(theirs), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def largest_gap(ours: Path, theirs: Path) -> float:
    one, other = load_file(ours), load_file(theirs)
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def test_sharded_training_is_that_of_one_process(tiny: Path, tmp_path: Path) -> None:
    """Full fine-tuning. G9: any split of a batch. G19, G20: weights and moments are sharded."""
    recipe = recipe_of(tmp_path, tiny)
    ended = finish(start_processes(2, "train", recipe), LIMIT)
    assert "largest logit gap" in ended[0][0], ended
    assert ended[1][0] == ""  # one process speaks
    assert not (tmp_path / "two/checkpoints/state/.8").exists()
    shards = sorted(p.name for p in (tmp_path / "two/checkpoints/state/8").glob("*.safetensors"))
    assert len(shards) == 2  # each process wrote its own

    train_alone(recipe, tmp_path / "one")
    assert_same_figures(tmp_path / "two", tmp_path / "one")
    two, one = (read_summary(tmp_path / run) for run in ("two", "one"))
    assert two["before"]["loss"] == pytest.approx(one["before"]["loss"], abs=1e-6)
    assert two["after"]["loss"] == pytest.approx(one["after"]["loss"], abs=1e-5)
    assert max(two["export"]["max_logit_gap"], one["export"]["max_logit_gap"]) < 1e-3
    exports = (tmp_path / run / "export/model.safetensors" for run in ("two", "one"))
    assert largest_gap(*exports) < 1e-4


def wait_for_lines(path: Path, count: int, processes: list[Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not (path.exists() and path.read_text().count("\n") >= count):
        assert all(process.poll() is None for process in processes), finish(processes, 1)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_sharded_adapter_survives_a_stop_and_comes_out_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G18, G22: killed between checkpoints, resumed by two processes; the adapter holds the slice
    of each. On a multimodal Gemma 4, whose layer scales are buffers that only one process reads.
    """
    monkeypatch.setattr("tunesmith.export.find_spec", importlib.util.find_spec)
    model = write_tiny_gemma4(tmp_path / "model", "dense", multimodal=True)
    recipe = recipe_of(
        tmp_path, model, lora={"r": 4, "alpha": 8.0, "dropout": 0.0}, run={"export": "adapter"}
    )
    started = start_processes(2, "train", recipe)
    wait_for_lines(tmp_path / "two/metrics.jsonl", 5, started)
    for process in started:
        process.send_signal(signal.SIGKILL)
    finish(started, LIMIT)
    assert not (tmp_path / "two/summary.json").exists()  # it was killed in time
    ended = finish(start_processes(2, "train", recipe), LIMIT)
    assert "goes on after step" in ended[0][0], ended
    assert "largest logit gap" in ended[0][0], ended

    train_alone(recipe, tmp_path / "one", "--set", "run.export=adapter")
    assert_same_figures(tmp_path / "two", tmp_path / "one")
    adapters = [tmp_path / run / "export/adapter_model.safetensors" for run in ("two", "one")]
    assert largest_gap(adapters[0], adapters[1]) < 1e-5
    assert all(np.abs(b).max() > 0 for name, b in load_file(adapters[0]).items() if "_B." in name)


def test_whole_weights_on_each_process_train_alike(tiny: Path, tmp_path: Path) -> None:
    """G9 without sharding: Accelerate's DDP, and a resume by one process of what two began."""
    recipe = recipe_of(tmp_path, tiny, parallel={"fsdp": 1}, run={"export": "none"})
    ended = finish(start_processes(2, "train", recipe, sharding=False), LIMIT)
    assert f"step {STEPS}/{STEPS}" in ended[0][0], ended
    train_alone(recipe, tmp_path / "one")
    assert_same_figures(tmp_path / "two", tmp_path / "one")


def test_sharding_that_is_not_active_is_refused(tiny: Path, tmp_path: Path) -> None:
    """Accelerate trains unsharded on CPUs without a word."""
    recipe = recipe_of(tmp_path, tiny)
    processes = start_processes(2, "train", recipe, sharding=False)
    ended = finish(processes, LIMIT)
    assert [process.returncode for process in processes] == [2, 2], ended
    assert "sharding is not active" in ended[0][1]
    assert "Traceback" not in ended[0][1]
    assert not (tmp_path / "two/metrics.jsonl").exists()


def test_more_shards_than_processes_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tunesmith("train", recipe_of(tmp_path, tiny)) == 2
    assert "parallel.fsdp 2 does not fit 1 device" in capsys.readouterr().err


# A machine that seems to have two GPUs; the processes started find none and work on the CPU.
TWO_DEVICES = """
import sys
import torch

torch.cuda.device_count = lambda: 2
from tunesmith.cli import main

sys.exit(main(sys.argv[1:]))
"""


def run_on_two_devices(*arguments: str | Path) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", TWO_DEVICES, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    ((out, err),) = finish([process], LIMIT)
    return process.returncode, out, err


def test_train_starts_a_process_for_each_device(tiny: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, tiny, parallel={"fsdp": 1}, run={"export": "none"})
    status, out, err = run_on_two_devices("train", recipe, "--set", "train.max_steps=2")
    assert status == 0, err
    assert "starting 2 processes" in out
    assert out.count("step 2/2") == 1
    assert read_summary(tmp_path / "two")["steps"] == 2


def test_the_exit_status_of_a_process_is_that_of_the_command(tiny: Path, tmp_path: Path) -> None:
    """3, diverged: manifests fail fast on it, and retry what a lost process leaves."""
    recipe = recipe_of(tmp_path, tiny, parallel={"fsdp": 1}, eval={"every_steps": None})
    status, _, err = run_on_two_devices("train", recipe, "--set", "train.learning_rate=3e38")
    assert "error: step 2: loss" in err
    assert status == 3


def test_what_is_wrong_is_told_once_before_processes_start(tiny: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, tiny)
    (tmp_path / "train.jsonl").write_text('{"text": 7}\n')
    status, out, err = run_on_two_devices("train", recipe)
    assert status == 2
    assert err.count("train.jsonl:1") == 1
    assert "starting" not in out


def test_the_proof_sees_sharded_weights_in_float32(tmp_path: Path) -> None:
    """Trained in bfloat16, whose rounding would be gaps of some 0.05 here."""
    model = write_tiny_gemma3(tmp_path / "model", dtype="bfloat16")
    recipe = recipe_of(
        tmp_path,
        model,
        train={"max_steps": 3, "compute_dtype": "bfloat16"},
        eval={"every_steps": None},
        lora={"r": 4, "alpha": 8.0},
        run={"export": "adapter"},
    )
    ended = finish(start_processes(2, "train", recipe), LIMIT)
    assert "largest logit gap" in ended[0][0], ended
    assert read_summary(tmp_path / "two")["export"]["max_logit_gap"] < 1e-3
