"""The training step. G numbers: known ways to go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import Stepper, batch_of, largest_gap, open_tiny, tiny_recipe, words
from tunesmith.data.types import Batch
from tunesmith.engines.jax import head

LENGTHS = (3, 200, 17, 44, 5, 120, 81, 30)  # of one row of 200 and seven of less (G9)


def uneven_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    return batch_of(*[[words(rng, length)] for length in LENGTHS], length=200)


@pytest.fixture(scope="module", autouse=True)
def _several_chunks() -> Iterator[None]:
    """The loss in many chunks of 64 positions, as with real vocabularies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "CHUNK_LOGITS", 64 * 512)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma3(tmp_path_factory.mktemp("tiny"))


# Adam divides a gradient by its own size: with the usual 1e-8, one that is all rounding counts
# as much as any other, and no two ways of adding up give the same step.
TRAIN = {"batch_size": 8, "optimizer": {"eps": 1e-5}}


@pytest.fixture(scope="module")
def stepper(tiny: Path) -> Stepper:
    return Stepper(open_tiny(tiny, train=TRAIN), tiny_recipe(tiny, train=TRAIN))


@pytest.fixture
def take(stepper: Stepper) -> Stepper:
    stepper.restart()
    return stepper


def three_steps(take: Stepper, micro: int) -> tuple[list[float], dict[str, np.ndarray]]:
    take.restart()
    losses = [float(take(uneven_batch(seed), micro=micro).loss) for seed in range(3)]
    return losses, take.weights()


ON_EIGHT_DEVICES = """
import json
import numpy as np
from pathlib import Path
from tests.tiny_engine import Stepper, open_tiny, tiny_recipe
from tests.unit.test_engine_step import TRAIN, three_steps
tiny = Path({tiny!r})
take = Stepper(open_tiny(tiny, train=TRAIN), tiny_recipe(tiny, train=TRAIN))
losses, weights = three_steps(take, micro=1)
np.savez({out!r}, **weights)
print(json.dumps(losses), take.session.program.mesh.size)
"""


def test_any_split_of_a_batch_gives_the_same_steps(
    take: Stepper, tiny: Path, run_python: Callable[..., str], tmp_path: Path
) -> None:
    """G9: 8 rows of 3 to 200 tokens at once = accumulated one by one = on 8 devices."""
    losses, weights = three_steps(take, micro=1)
    started = {name: np.array(array) for name, array in take.session.trainable.items()}
    assert largest_gap(weights, started) > 2e-3  # about 1e-3 a step
    accumulated, same_weights = three_steps(take, micro=8)
    assert accumulated == pytest.approx(losses, abs=1e-5)
    assert largest_gap(weights, same_weights) < 1e-5

    out = str(tmp_path / "weights.npz")
    told = run_python(ON_EIGHT_DEVICES.format(tiny=str(tiny), out=out), devices=8)
    on_devices, count = told.rsplit(maxsplit=1)
    assert count == "8"
    assert json.loads(on_devices) == pytest.approx(losses, abs=1e-5)
    with np.load(out) as file:
        assert largest_gap(weights, dict(file)) < 1e-5


def test_the_loss_is_the_mean_over_all_targets(take: Stepper) -> None:
    """Not the mean of the rows' means: a row of 2 targets counts as 2 of 492."""
    batch = uneven_batch(0)
    together = float(take(batch, rate=0.0).loss)
    sums, counts = [], []
    for row, length in enumerate(LENGTHS):
        only = np.arange(8)[:, None] == row
        alone = replace(
            batch,
            target_mask=batch.target_mask & only,
            segment_ids=np.where(only, batch.segment_ids, 0),
        )
        sums.append(float(take(alone, rate=0.0).loss) * (length - 1))
        counts.append(length - 1)
    assert together == pytest.approx(sum(sums) / sum(counts), rel=1e-6)
    assert abs(together - np.mean(np.divide(sums, counts))) > 1e-3


def test_no_array_holds_the_logits_of_all_positions(take: Stepper) -> None:
    """G34: 1,600 positions by 512 entries appear nowhere in the step; a chunk of 64 does."""
    take(uneven_batch(0))
    for program in take.programs():
        assert "f32[64,512]" in program
        assert not [shape for shape in ("[1600,512]", "[8,200,512]") if shape in program]


def test_a_step_that_is_not_finite_changes_nothing(take: Stepper) -> None:
    """G14: neither weights nor moments, and the next step goes on from them."""
    first = uneven_batch(0)
    take(first)
    before = take.weights()
    moments = [np.array(a) for a in (take.state.optimizer[0].mu["embed"],)]
    count = int(take.state.optimizer[0].count)
    poisoned = np.array(take.state.trainable["final_norm"])
    poisoned[3] = np.nan
    good = take.state.trainable["final_norm"]
    take.state.trainable["final_norm"] = jnp.asarray(poisoned, device=good.sharding)
    result = take(first)
    assert not bool(result.applied)
    assert not np.isfinite(result.loss)
    after = take.weights()
    np.testing.assert_array_equal(after["final_norm"], poisoned)
    for name in before.keys() - {"final_norm"}:
        np.testing.assert_array_equal(after[name], before[name])
    np.testing.assert_array_equal(take.state.optimizer[0].mu["embed"], moments[0])
    assert int(take.state.optimizer[0].count) == count == 1


def test_a_batch_without_targets_moves_nothing(take: Stepper) -> None:
    """The share of a host whose rows have run out (G37), or a batch of padding."""
    before = take.weights()
    result = take(batch_of(*[[]] * 8, length=200))
    assert bool(result.applied)
    assert (float(result.loss), float(result.grad_norm)) == (0.0, 0.0)
    assert largest_gap(before, take.weights()) == 0.0


def test_small_steps_of_float32_masters_all_arrive(tiny: Path) -> None:
    """With bfloat16 compute and a rate of 2e-5; bfloat16 masters would lose most of it."""
    train = {"compute_dtype": "bfloat16", "learning_rate": 2e-5, "batch_size": 2}
    take = Stepper(open_tiny(tiny, train=train), tiny_recipe(tiny, train=train))
    rng = np.random.default_rng(0)
    batch = batch_of([words(rng, 30)], [words(rng, 22)], length=32)
    before = take.weights()
    take(batch)
    moved, would_move, total = 0, 0, 0
    for name, after in take.weights().items():
        assert after.dtype == np.float32
        moved += int((after != before[name]).sum())
        low = [jnp.asarray(array, jnp.bfloat16) for array in (before[name], after)]
        would_move += int(jnp.sum(low[0] != low[1]))
        total += after.size
    assert moved / total > 0.95
    assert would_move / total < 0.2


def test_lora_trains_adapters_alone_with_dropout_in_training_alone(tiny: Path) -> None:
    sections = {"lora": {"r": 4, "alpha": 8.0, "dropout": 0.5}, "train": {"batch_size": 2}}
    session = open_tiny(tiny, **sections)
    take = Stepper(session, tiny_recipe(tiny, **sections))
    assert all(".lora_" in name for name in take.state.trainable)
    assert all(".lora_" in name for name in take.state.optimizer[0].mu)
    frozen = {name: np.array(array) for name, array in session.frozen.items()}
    rng = np.random.default_rng(0)
    batch = batch_of([words(rng, 30)], [words(rng, 22)], length=32)
    losses = [float(take(batch).loss) for _ in range(8)]
    assert losses[-1] < losses[0] - 0.02
    # With the same weights, only the dropped inputs differ from step to step.
    still = {float(take(batch, rate=0.0).loss) for _ in range(3)}
    assert len(still) == 3
    # Each pass of a step draws its own: the same row twice is not the same loss twice.
    once, twice = (
        batch_of(*[[words(np.random.default_rng(1), 30)]] * n, length=32) for n in (1, 2)
    )
    count = take.count
    one = float(take(once, rate=0.0).loss)
    take.count = count
    assert float(take(twice, rate=0.0, micro=2).loss) != pytest.approx(one, rel=1e-4)
    session.trainable = take.state.trainable
    ids = words(rng, 20)
    np.testing.assert_array_equal(session.logits(ids), session.logits(ids))
    for name, array in session.frozen.items():
        np.testing.assert_array_equal(array, frozen[name])
