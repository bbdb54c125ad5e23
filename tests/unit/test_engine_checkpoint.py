"""Checkpoints: saved, found again, passed over when damaged. G numbers: known ways to go wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.tiny_engine import collect
from tunesmith.engines.jax import devices
from tunesmith.engines.jax.checkpoint import Checkpoints
from tunesmith.engines.jax.step import TrainState
from tunesmith.engines.loop import Progress
from tunesmith.errors import UserError


def state_of(value: float) -> TrainState:
    """Weights and moments that are all this value, placed as in training."""
    place = devices.replicated(devices.all_devices())
    weights = {"embed": jnp.full((64, 32), value), "norm": jnp.full((8,), -value)}
    moments = {name: 2.0 * array for name, array in weights.items()}
    state = TrainState(weights, {"count": jnp.int32(value), "mu": moments})
    return jax.device_put(state, place)


def assert_state(found: TrainState, value: float) -> None:
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(state_of(value)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.sharding == theirs.sharding


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Checkpoints of steps 1, 2 and 3, of which the last two are kept; step 1 was best."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    checkpoints.save_best(state_of(1.0).trainable, 1)
    for step in (1, 2, 3):
        checkpoints.save(state_of(step), Progress(step, best_step=1, tokens=10 * step))
    checkpoints.close()
    return tmp_path / "checkpoints"


def restore(directory: Path) -> tuple[TrainState, Progress, list[str]]:
    lines, say = collect()
    checkpoints = Checkpoints(directory, keep=2)
    state, progress = checkpoints.restore(state_of(0.0), say)
    checkpoints.close()
    return state, progress, lines


def test_the_newest_comes_back_whole(three: Path) -> None:
    state, progress, lines = restore(three)
    assert_state(state, 3.0)
    assert progress == Progress(3, best_step=1, tokens=30)
    assert lines == []
    assert sorted(path.name for path in (three / "state").iterdir()) == ["2", "3"]


def test_nothing_saved_starts_from_what_is_given(tmp_path: Path) -> None:
    state, progress, lines = restore(tmp_path / "checkpoints")
    assert_state(state, 0.0)
    assert (progress, lines) == (Progress(), [])


def cut_the_largest(step: Path) -> None:
    largest = max((p for p in step.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def empty_all(step: Path) -> None:
    for path in step.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


def lose_progress(step: Path) -> None:
    shutil.rmtree(step / "progress")


def lose_moments(step: Path) -> None:
    shutil.rmtree(step / "optimizer")


@pytest.mark.parametrize("damage", [cut_the_largest, empty_all, lose_progress, lose_moments])
def test_a_damaged_one_is_named_and_the_one_before_taken(
    three: Path, damage: Callable[[Path], None]
) -> None:
    """G23."""
    damage(three / "state" / "3")
    state, progress, lines = restore(three)
    assert_state(state, 2.0)
    assert progress.step == 2
    (line,) = lines
    assert line.startswith("the checkpoint of step 3 cannot be read (")
    assert line.endswith("); trying the one before")


def test_training_on_replaces_the_damaged_one(three: Path) -> None:
    """G23: else it would stand in the way of the new one for ever."""
    cut_the_largest(three / "state" / "3")
    lines, say = collect()
    checkpoints = Checkpoints(three, keep=2)
    checkpoints.restore(state_of(0.0), say)
    checkpoints.save(state_of(30.0), Progress(3))
    checkpoints.close()
    state, progress, lines = restore(three)
    assert_state(state, 30.0)
    assert (progress.step, lines) == (3, [])


def test_all_damaged_is_an_error_and_deletes_nothing(three: Path) -> None:
    """Rather than hours of training lost without a word: another version may read them."""
    for step in ("2", "3"):
        empty_all(three / "state" / step)
    lines, say = collect()
    checkpoints = Checkpoints(three, keep=2)
    with pytest.raises(UserError, match=r"none of the checkpoints in .* can be read"):
        checkpoints.restore(state_of(0.0), say)
    checkpoints.close()
    assert [line.split(" cannot")[0] for line in lines] == [
        "the checkpoint of step 3",
        "the checkpoint of step 2",
    ]
    assert sorted(path.name for path in (three / "state").iterdir()) == ["2", "3"]


def test_the_best_stays_when_newer_ones_come(three: Path) -> None:
    checkpoints = Checkpoints(three, keep=2)
    best = checkpoints.restore_best(state_of(0.0).trainable, 1)
    for name, array in state_of(1.0).trainable.items():
        np.testing.assert_array_equal(best[name], array)
    checkpoints.save_best(state_of(7.0).trainable, 7)
    checkpoints.close()
    assert [path.name for path in (three / "best").iterdir()] == ["7"]


def test_saves_never_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in the background hung one in four runs of two hosts, each waiting for another save."""
    calls: list[tuple[str, str]] = []

    def watch(name: str) -> None:
        call = getattr(ocp.CheckpointManager, name)

        def spy(self: Any, *arguments: Any, **options: Any) -> Any:
            calls.append((name, Path(self.directory).name))
            return call(self, *arguments, **options)

        monkeypatch.setattr(ocp.CheckpointManager, name, spy)

    watch("save")
    watch("wait_until_finished")
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save_best(state_of(1.0).trainable, 1)
    checkpoints.save(state_of(1.0), Progress(1))
    checkpoints.save_best(state_of(2.0).trainable, 2)
    for other, saved in (("state", "best"), ("best", "state"), ("state", "best")):
        at = calls.index(("save", saved))
        assert ("wait_until_finished", other) in calls[:at]
        del calls[: at + 1]
    checkpoints.close()


def take_weights(
    directory: Path, like: TrainState | None = None, *, use_best: bool = True
) -> tuple[float, int, list[str]]:
    """The value of all weights taken, the step they are of, and what was said."""
    lines, say = collect()
    checkpoints = Checkpoints(directory, keep=2)
    like = like or state_of(0.0)
    weights, step = checkpoints.restore_weights(like.trainable, say, use_best=use_best)
    checkpoints.close()
    (value,) = np.unique(weights["embed"])
    assert weights["embed"].sharding == like.trainable["embed"].sharding
    return float(value), step, lines


def test_weights_alone_are_the_best_or_the_newest(three: Path) -> None:
    assert take_weights(three) == (1.0, 1, [])
    assert take_weights(three, use_best=False) == (3.0, 3, [])
    shutil.rmtree(three / "best" / "1")
    assert take_weights(three) == (3.0, 3, [])


def test_weights_alone_pass_over_damaged_ones(three: Path) -> None:
    empty_all(three / "best" / "1")
    cut_the_largest(three / "state" / "3" / "trainable")
    value, step, lines = take_weights(three)
    assert (value, step) == (2.0, 2)
    assert [line.split(" cannot")[0] for line in lines] == [
        "the checkpoint of step 1",
        "the checkpoint of step 3",
    ]


def narrower(state: TrainState) -> TrainState:
    return state._replace(trainable=state.trainable | {"embed": state.trainable["embed"][:, 1:]})


def fewer(state: TrainState) -> TrainState:
    return state._replace(trainable={"embed": state.trainable["embed"]})


def more(state: TrainState) -> TrainState:
    return state._replace(trainable=state.trainable | {"other": state.trainable["norm"]})


@pytest.mark.parametrize("change", [narrower, fewer, more])
@pytest.mark.parametrize("use_best", [True, False])
def test_other_weights_are_refused(
    three: Path, change: Callable[[TrainState], TrainState], use_best: bool
) -> None:
    with pytest.raises(UserError, match="holds other weights than this recipe trains"):
        take_weights(three, change(state_of(0.0)), use_best=use_best)


def test_no_weights_to_take(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no readable checkpoint"):
        take_weights(tmp_path / "checkpoints")


SAVE_ON_FOUR_DEVICES = """
from pathlib import Path
from tests.unit.test_engine_checkpoint import Checkpoints, Progress, state_of
checkpoints = Checkpoints(Path({directory!r}), keep=2)
checkpoints.save_best(state_of(1.0).trainable, 1)
checkpoints.save(state_of(2.0), Progress(2))
checkpoints.close()
"""


def test_devices_may_be_others_than_when_it_was_saved(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    """A run goes on, and is exported, on a machine with another number of devices."""
    run_python(SAVE_ON_FOUR_DEVICES.format(directory=str(tmp_path)), devices=4)
    state, progress, lines = restore(tmp_path)
    assert_state(state, 2.0)
    assert (progress, lines) == (Progress(2), [])
    assert take_weights(tmp_path) == (1.0, 1, [])
    assert take_weights(tmp_path, use_best=False) == (2.0, 2, [])
