"""Stops that lose nothing: Ctrl-C while a checkpoint is written, and starts that never began."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiny_run import tunesmith, write_recipe
from tunesmith.errors import Diverged
from tunesmith.runs.rundir import RunDir, write_json

loop = importlib.import_module("tunesmith.engines.jax.train")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Diverged])
def test_a_checkpoint_being_written_is_finished_however_training_stops(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left open, Orbax loses it and prints tracebacks while Python ends."""
    import jax

    from tunesmith.engines.jax.step import TrainState
    from tunesmith.engines.loop import Progress

    weights = {"w": jax.numpy.arange(1 << 20, dtype="float32")}

    def saves_and_stops(checkpoints: Any, *arguments: Any, **named: Any) -> None:
        checkpoints.save(TrainState(weights, {"m": weights["w"]}), Progress(step=7))
        raise stop("at step 8")

    monkeypatch.setattr(loop, "JaxTrainer", lambda session, recipe, data, checkpoints: checkpoints)
    monkeypatch.setattr(loop, "run_loop", saves_and_stops)
    recipe: Any = SimpleNamespace(train=SimpleNamespace(checkpoints=SimpleNamespace(keep=1)))
    nothing: Any = None
    with pytest.raises(stop):
        loop.train(nothing, recipe, nothing, RunDir(tmp_path), nothing, print)
    assert [path.name for path in (tmp_path / "checkpoints/state").iterdir()] == ["7"]


def test_a_start_that_failed_before_any_work_leaves_room_for_the_corrected_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped model must not bind the folder to the mistake."""
    run = RunDir(tmp_path / "run")
    write_recipe(tmp_path, tmp_path / "old")
    recipe = tmp_path / "recipe.yaml"
    run.path.mkdir()
    run.recipe.write_text(recipe.read_text())
    write_json(run.manifest, {"data_fingerprint": "another"})
    write_recipe(tmp_path, tmp_path / "new")
    assert tunesmith("train", recipe) == 2
    assert f"{tmp_path / 'new'} is not a directory" in capsys.readouterr().err

    write_json(run.evaluation("before"), {})  # from here on there is something to lose
    assert tunesmith("train", recipe) == 2
    assert "holds a run of another recipe" in capsys.readouterr().err
