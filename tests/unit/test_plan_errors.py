"""`tunesmith plan`: what it refuses before anything is counted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_run import tunesmith
from tunesmith.engines.contract import Estimate
from tunesmith.errors import UserError
from tunesmith.hardware import parse_target
from tunesmith.models.published import find_config, published_config
from tunesmith.plan import Plan


@pytest.mark.parametrize(
    ("text", "name", "machines"),
    [
        ("b200x8", "b200x8", (1, "a4-highgpu-8g")),
        ("B200x16", "b200x16", (2, "a4-highgpu-8g")),
        ("h100", "h100x1", (1, "a3-highgpu-1g")),
        ("a100-80x3", "a100-80x3", (1, "a2-ultragpu-4g")),
        ("l4x2", "l4x2", (1, "g2-standard-24")),
    ],
)
def test_targets_are_read(text: str, name: str, machines: tuple[int, str]) -> None:
    target = parse_target(text)
    assert (target.name, target.machines) == (name, machines)


@pytest.mark.parametrize("text", ["b200x0", "b300x8", "8xb200", "b200x-1", "", "b200x8x8"])
def test_what_is_no_target_names_the_chips(text: str) -> None:
    with pytest.raises(UserError, match="is no machine") as caught:
        parse_target(text)
    assert "b200, h200, h100" in str(caught.value)


def test_a_mistyped_chip_is_guessed() -> None:
    with pytest.raises(UserError, match="did you mean b200x8"):
        parse_target("b20x8")


def test_an_unknown_model_says_how_to_fetch_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    status = tunesmith(
        "plan", "text-to-sql-gemma4-31b", "--set", "model.id=someone/gemma-5", "--on", "b200x8"
    )
    assert status == 2
    error = capsys.readouterr().err
    assert "the shape of someone/gemma-5 is not known here" in error
    assert "hf download someone/gemma-5 config.json" in error


def test_a_directory_has_its_own_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_text"}))
    assert find_config("dir", str(tmp_path), None) == {"model_type": "gemma4_text"}


@pytest.mark.parametrize(
    ("model_id", "layers"),
    [
        ("google/gemma-3-270m", 18),
        ("google/gemma-3-27b-it", 62),
        ("google/gemma-4-31B-it", 60),
        ("google/gemma-4-26B-A4B", 30),
        ("google/gemma-4-E2B-it", 35),
    ],
)
def test_published_models_are_known(model_id: str, layers: int) -> None:
    config = published_config(model_id)
    assert config is not None
    assert config["num_hidden_layers"] == layers


@pytest.mark.parametrize("model_id", ["google/gemma-2-2b", "other/gemma-3-1b", "google/gemma-3-9b"])
def test_other_models_are_not(model_id: str) -> None:
    assert published_config(model_id) is None


def test_targets_of_as_many_devices_are_counted_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An estimate takes most of a minute, and knows nothing of the chip."""
    counted = []

    def estimate(*_: Any, device_count: int, **__: Any) -> Estimate:
        counted.append(device_count)
        if device_count == 16:
            raise UserError("16 are too many")
        return Estimate(device_count, 76 * 10**9, {"parameters": 76 * 10**9}, "forward", 0, [], 1.0)

    monkeypatch.setattr("tunesmith.plan.estimate", estimate)
    on = ["b200x8", "h100x8", "a100-40x8", "b200x16"]
    assert tunesmith("plan", "text-to-sql-gemma4-31b", "--on", *on) == 0
    assert counted == [8, 16]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(", ")[0] for line in lines if not line.startswith("  ")] == [
        "b200x8 (1 × a4-highgpu-8g): fits",
        "h100x8 (1 × a3-highgpu-8g): tight",
        "a100-40x8 (1 × a2-highgpu-8g): does not fit",
        "b200x16: refused: 16 are too many",
    ]


def test_answers_that_may_not_fit_make_it_tight() -> None:
    """Evaluations generate before and after training, beside weights without a step."""
    gib = 2**30
    found = Estimate(8, 15 * gib, {"parameters": 7 * gib}, "backward", 28 * gib, [], 1.0)
    assert Plan(parse_target("h100x8"), found).verdict == "fits"
    assert Plan(parse_target("l4x8"), found).verdict == "tight"


def test_the_jax_engine_says_once_that_it_has_no_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tunesmith("plan", "text-to-sql-gemma4-31b", "--set", "engine=jax") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: the JAX engine has no estimate yet\n")
    assert "no estimate" not in captured.out


def test_the_counting_process_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned on a machine with GPUs, fake tensors would meet real devices."""
    environments = []
    start = subprocess.Popen

    def noted(command: Any, **named: Any) -> Any:
        environments.append(named["env"]["CUDA_VISIBLE_DEVICES"])
        return start(command, **named)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(subprocess, "Popen", noted)
    assert tunesmith("plan", "text-to-sql-gemma4-31b", "--set", "engine=jax") == 2
    assert environments == [""]
