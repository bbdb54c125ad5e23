"""The training loop: resume, divergence, the best checkpoint. G numbers: known ways to go wrong."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import collect, largest_gap, tiny_recipe
from tests.tiny_run import sentences, write_lines
from tunesmith.data.dataset import PreparedData, prepare
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.contract import LossSum, TrainResult
from tunesmith.engines.jax import devices
from tunesmith.engines.jax.checkpoint import Checkpoints
from tunesmith.engines.jax.session import JaxSession, open_trainer
from tunesmith.engines.loop import total_steps
from tunesmith.errors import Diverged
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import Line, MetricsLog, read_metrics
from tunesmith.runs.rundir import RunDir

# The package's `train` is the function in it.
loop = importlib.import_module("tunesmith.engines.jax.train")

# What the runs here share, so that one compiled program serves them all.
LORA = {"r": 4, "alpha": 8.0, "dropout": 0.3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, 22 rows to train on and 4 to evaluate on."""
    folder = tmp_path_factory.mktemp("train")
    write_tiny_gemma3(folder / "tiny")
    write_lines(folder / "train.jsonl", [{"text": text} for text in sentences(22)])
    write_lines(folder / "eval.jsonl", [{"text": text} for text in sentences(4, seed=1)])
    devices.start()  # programs compiled once are found again
    return folder


@dataclass
class Run:
    """One run, started as often as a test likes."""

    folder: Path
    path: Path
    recipe: Recipe

    @property
    def data(self) -> PreparedData:
        tokenizer = Tokenizer.load(self.folder / "tiny")
        return prepare(self.recipe, tokenizer, base_dir=self.folder)

    def start(
        self, log: MetricsLog | None = None
    ) -> tuple[TrainResult, dict[str, np.ndarray], list[str]]:
        """Train to the end; the result, the weights and what was said."""
        session = open_trainer(self.recipe, self.folder / "tiny")
        lines, say = collect()
        self.said = lines
        log = log or MetricsLog(self.path / "metrics.jsonl")
        result = loop.train(session, self.recipe, self.data, RunDir(self.path), log, say)
        weights = {name: np.asarray(array) for name, array in session.trainable.items()}
        return result, weights, lines

    def metrics(self, kind: str = "train") -> list[dict[str, Any]]:
        """Its lines without the times."""
        timed = {"time", "step_seconds", "wait_seconds"}
        lines = read_metrics(self.path / "metrics.jsonl")
        return [{k: line[k] for k in line.keys() - timed} for line in lines if line["kind"] == kind]

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name) for path in (self.path / "checkpoints/state").iterdir())


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Callable[..., Run]:
    """A run of 6 steps in its epoch: 22 rows, 4 a step."""

    def make(name: str = "run", **sections: Any) -> Run:
        data = {
            "train": {"files": ["train.jsonl"], "format": "text"},
            "eval": {"files": ["eval.jsonl"], "format": "text"},
            "packing": False,
        }
        sections["data"] = data | sections.get("data", {})
        sections.setdefault("lora", LORA)
        (tmp_path / name).mkdir(exist_ok=True)
        return Run(folder, tmp_path / name, tiny_recipe(folder / "tiny", **sections))

    return make


class Broken(Exception):
    """The power fails."""


class BreaksAt(MetricsLog):
    """A log whose process ends when a step is told."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(path)
        self._step = step

    def append(self, line: Line) -> None:
        if line.kind == "train" and line.step == self._step:
            raise Broken
        super().append(line)


SAVES = {"train": {"checkpoints": {"every_steps": 2}}}


def test_a_run_broken_off_goes_on_as_if_nothing_had_been(run: Callable[..., Run]) -> None:
    """G22: weights and metrics equal an unbroken run's bit for bit, dropout included."""
    whole, broken = run("whole", **SAVES), run("broken", **SAVES)
    result, weights, _ = whole.start()
    for step in (1, 4):  # before the first checkpoint, and between two
        with pytest.raises(Broken):
            broken.start(BreaksAt(broken.path / "metrics.jsonl", step))
    resumed, same_weights, lines = broken.start()
    assert "goes on after step 2 of 6" in lines
    assert largest_gap(weights, same_weights) == 0.0
    assert broken.metrics() == whole.metrics()
    assert [line["step"] for line in broken.metrics()] == [1, 2, 3, 4, 5, 6]
    assert (resumed.steps, resumed.tokens, resumed.target_tokens, resumed.best_step) == (
        result.steps,
        result.tokens,
        result.target_tokens,
        result.best_step,
    )
    again, same_weights, lines = broken.start()
    assert "goes on after step 6 of 6" in lines
    assert largest_gap(weights, same_weights) == 0.0
    assert (again.steps, again.tokens_per_second) == (6, None)
    assert broken.metrics() == whole.metrics()


def test_a_damaged_checkpoint_costs_a_few_steps_and_no_more(run: Callable[..., Run]) -> None:
    """G23: the one before is taken, said so, and the end is the same."""
    whole, broken = run("whole", **SAVES), run("broken", **SAVES)
    _, weights, _ = whole.start()
    with pytest.raises(Broken):
        broken.start(BreaksAt(broken.path / "metrics.jsonl", 6))
    assert broken.checkpoints() == [2, 4]
    for path in (broken.path / "checkpoints/state/4").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, same_weights, lines = broken.start()
    assert lines[0].startswith("the checkpoint of step 4 cannot be read (")
    assert "goes on after step 2 of 6" in lines
    assert largest_gap(weights, same_weights) == 0.0
    assert broken.metrics() == whole.metrics()
    assert broken.checkpoints() == [4, 6]


def test_a_log_is_true_to_the_data(run: Callable[..., Run]) -> None:
    whole = run(train={"log_every": 4, "schedule": "linear"})
    result, _, lines = whole.start()
    data = whole.data.train
    assert (result.steps, result.tokens) == (6, data.num_tokens)
    assert result.target_tokens == data.num_target_tokens
    logged = whole.metrics()
    assert [line["step"] for line in logged] == [4, 6]  # and always the last
    assert [line["learning_rate"] for line in logged] == pytest.approx([5e-4, 1e-3 / 6])
    batch = data.batch(3, batch_size=4, seed=0)
    assert logged[0]["tokens"] == int((batch.segment_ids > 0).sum())
    assert logged[0]["target_tokens"] == int(batch.target_mask.sum())
    assert result.tokens_per_second is not None
    assert result.seconds > 0
    assert lines[-1].startswith("step 6/6  loss ")


def test_a_first_loss_like_guessing_is_loudly_said(run: Callable[..., Run]) -> None:
    """G15: random weights are the extreme case."""
    _, _, lines = run().start()
    (warning,) = [line for line in lines if line.startswith("WARNING")]
    assert "is what guessing gives (ln 512 = 6.24)" in warning


# --- not finite ----------------------------------------------------------------------------------


def poison(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Let the loss of these steps be NaN, through the frozen weights."""
    make = loop.make_train_step

    def make_poisoned(*arguments: Any) -> Callable[..., Any]:
        step_fn, calls = make(*arguments), 0

        def step(state: Any, frozen: dict[str, jax.Array], *rest: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls in steps:
                frozen = frozen | {"final_norm": frozen["final_norm"] * jnp.nan}
            return step_fn(state, frozen, *rest)

        return step

    monkeypatch.setattr(loop, "make_train_step", make_poisoned)


def test_a_loss_that_is_not_finite_stops_the_run(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: the step is named, nothing of it is saved; going on begins before it."""
    stopped = run(**SAVES)
    with monkeypatch.context() as patch:
        poison(patch, 3)
        with pytest.raises(Diverged, match=r"step 3: loss nan, gradient norm nan: not finite"):
            stopped.start()
    assert [line["step"] for line in stopped.metrics()] == [1, 2]
    _, _, lines = stopped.start()
    assert "goes on after step 2 of 6" in lines


def test_skipping_drops_the_step_and_goes_on(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 3)
    skipping = run(train={"on_nonfinite": "skip"})
    _, weights, lines = skipping.start()
    assert [line for line in lines if "dropped" in line] == [
        "step 3: loss nan, gradient norm nan: not finite; step dropped (1 of 10 allowed)"
    ]
    assert all(np.isfinite(array).all() for array in weights.values())
    assert [line["loss"] is None for line in skipping.metrics()] == [False] * 2 + [True] + [
        False
    ] * 3


def test_skipping_has_an_end(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 2, 3, 5)
    settings = {"on_nonfinite": "skip", "max_skipped_steps": 2}
    with pytest.raises(Diverged, match=r"step 5: .*not finite"):
        run(train=settings).start()


def test_a_rate_beyond_all_reason_saves_nothing_bad(run: Callable[..., Run]) -> None:
    """G14: step 1 is finite, but not what it leaves: its evaluation finds out."""
    bad = run(train={"learning_rate": 1e30}, eval={"every_steps": 1})
    with pytest.raises(Diverged, match=r"step 1: the evaluation loss is (nan|inf)"):
        bad.start()
    assert bad.checkpoints() == []
    assert list((bad.path / "checkpoints/best").iterdir()) == []


# --- evaluation and the best checkpoint ----------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation losses of steps 2, 4 and 6: the middle one is least."""
    losses = iter([3.0, 2.0, 5.0])
    monkeypatch.setattr(JaxSession, "loss", lambda *_, **__: LossSum(10 * next(losses), 10))


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("use_best", [True, False])
def test_the_best_weights_are_taken_at_the_end(run: Callable[..., Run], use_best: bool) -> None:
    """G21: evaluations are logged, the best one is named, and it is what is exported."""
    tuned = run(eval={"every_steps": 2}, run={"use_best": use_best})
    result, weights, lines = tuned.start()
    assert [(line["step"], line["loss"]) for line in tuned.metrics("eval")] == [
        (2, 3.0),
        (4, 2.0),
        (6, 5.0),
    ]
    assert [line for line in lines if "evaluation" in line][:3] == [
        "step 2: evaluation loss 3.0000 (best so far)",
        "step 4: evaluation loss 2.0000 (best so far)",
        "step 6: evaluation loss 5.0000",
    ]
    named = "takes the weights of step 4, whose evaluation loss was least" in lines
    assert (result.best_step, named) == ((4, True) if use_best else (6, False))
    checkpoints = Checkpoints(tuned.path / "checkpoints", keep=2)
    best = checkpoints.restore_best({n: jnp.asarray(w) for n, w in weights.items()}, 4)
    checkpoints.close()
    gap = largest_gap(weights, {name: np.asarray(array) for name, array in best.items()})
    assert gap == 0.0 if use_best else gap > 1e-4


def test_evaluation_takes_no_more_memory_for_more_rows(run: Callable[..., Run]) -> None:
    """G35: 1,000 rows leave what 100 leave, and hold no more on the way."""
    many = run(data={"eval": {"files": ["many.jsonl"], "format": "text"}})
    write_lines(
        many.folder / "many.jsonl", [{"text": text} for text in sentences(1000, seed=2, longest=8)]
    )
    session, rows = open_trainer(many.recipe, many.folder / "tiny"), many.data.eval
    assert rows is not None

    def live(*_: int) -> int:
        size = sum(array.nbytes for array in jax.live_arrays())
        held.append(size)
        return size

    peaks = []
    for count in (100, 100, 1000):
        held: list[int] = []
        before = live()
        measured = session.loss(rows.first_rows(count), batch_size=8, progress=live)
        assert measured.target_tokens > 5 * count
        assert live() == before
        assert len(held) == count // 8 + (count % 8 > 0) + 2
        peaks.append(max(held))
    assert peaks[2] == peaks[1]


def test_the_loss_of_rows_is_their_mean_whatever_the_batch(run: Callable[..., Run]) -> None:
    tuned = run()
    session, rows = open_trainer(tuned.recipe, tuned.folder / "tiny"), tuned.data.train
    one, many = session.loss(rows, batch_size=1), session.loss(rows, batch_size=8)
    assert one.target_tokens == many.target_tokens == rows.num_target_tokens
    assert one.mean == pytest.approx(many.mean, rel=1e-6)
    assert 5.5 < one.mean < 8  # near ln 512


# --- how many steps ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 6),
        ({"epochs": 2.0}, 12),
        ({"epochs": 0.5}, 3),
        ({"epochs": 0.01}, 1),
        ({"epochs": 1.1}, 7),
        ({"max_steps": 4}, 4),
        ({"max_steps": 40}, 6),
    ],
)
def test_steps_of_a_run(settings: dict[str, Any], steps: int) -> None:
    """22 rows, 4 at a time."""
    packed = SimpleNamespace(steps_per_epoch=lambda batch_size: math.ceil(22 / batch_size))
    recipe = tiny_recipe(Path("none"), train=settings)
    data: Any = SimpleNamespace(train=packed)
    assert total_steps(recipe, data) == steps
