"""`tunesmith plan`: what it refuses before anything is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_run import tunesmith
from tunesmith.errors import UserError
from tunesmith.hardware import parse_target
from tunesmith.models.published import find_config, published_config


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
