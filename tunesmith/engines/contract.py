"""What an engine offers. Verbs know engines through this module alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tunesmith.data.dataset import PackedDataset, PreparedData
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Generation, Recipe
from tunesmith.runs.metrics import MetricsLog
from tunesmith.runs.rundir import RunDir

Say = Callable[[str], None]
"""Takes a line for the user about what goes on."""

Measure = Callable[[], Mapping[str, float]]
"""Scores the weights while they train, apart from the loss: execution accuracy on a sample."""


@dataclass(frozen=True, slots=True)
class LossSum:
    """Cross-entropy in nats, summed over target tokens."""

    total: float
    target_tokens: int

    @property
    def mean(self) -> float:
        """Nats per target token."""
        return self.total / self.target_tokens


@dataclass(frozen=True, slots=True)
class Completion:
    """One generated answer.

    Attributes:
        ids: int32 [T], without the token that ended it.
        finished: whether the model (or the caller's `done`) ended it, rather than the length limit.
    """

    ids: np.ndarray
    finished: bool


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a finished training run measured.

    Attributes:
        steps: optimizer steps in all, those before a resume included, as in all figures here.
        tokens: tokens trained on, padding left out.
        target_tokens: tokens with a loss among them.
        seconds: in training, its evaluations and checkpoints included.
        tokens_per_second: median over the steps of the last process, without its first, which
            compiles; None where it took no more than that one.
        best_step: the step whose weights the session now holds.
    """

    steps: int
    tokens: int
    target_tokens: int
    seconds: float
    tokens_per_second: float | None
    best_step: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of a training step, known before anything runs.

    Attributes:
        device_count: devices in all that share the work.
        peak_bytes: most that is held at once on one of them.
        by_kind: that sum's parts: `parameters`, `gradients` and `optimizer` as they lie there,
            `communication` (weights made whole for a while, gradients on their way), `activations`
            (all else that a pass makes), `buffers`.
        phase: when it is held: `forward`, `backward` or `optimizer step`.
        cache_bytes: of keys and values, beside the parameters, while evaluations generate answers;
            no part of the peak. At most: if prompts are as long as a sequence may be.
        not_counted: what a device holds besides.
        seconds: that the estimate took.
    """

    device_count: int
    peak_bytes: int
    by_kind: Mapping[str, int]
    phase: str
    cache_bytes: int
    not_counted: Sequence[str]
    seconds: float


class Session(Protocol):
    """Weights on devices, ready to score, generate, train and export."""

    @property
    def held_dtype(self) -> str:
        """Type in which the frozen weights lie: `float32` or `bfloat16`; what trains is float32."""
        ...

    def loss(
        self,
        dataset: PackedDataset,
        *,
        batch_size: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> LossSum:
        """Sum the loss over a data set; `progress` is told (sequences done, in all)."""
        ...

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        settings: Generation,
        *,
        stop_ids: Sequence[int],
        batch_size: int = 32,
        done: Callable[[int, np.ndarray], bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Continue each prompt (int32 [T]); answers come in the prompts' order.

        Args:
            prompts: token ids, BOS included.
            settings: length and sampling.
            stop_ids: tokens that end an answer.
            batch_size: prompts answered at once.
            done: asked now and then with a prompt's index and its new ids so far; true ends it.
            progress: told how many prompts are answered.
        """
        ...

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """Logits [T, V] of one sequence [T], computed in float32.

        Every process of a run calls it alike, as it does all that a session offers: sharded weights
        are gathered by all together.
        """
        ...

    def export(self, out_dir: Path | None, *, kind: str, dtype: str) -> None:
        """Write the weights of an export, `merged` or `adapter`, into an empty directory.

        Every process calls it, and the one that writes names the directory.
        """
        ...

    def take_weights(self, run: RunDir, say: Say, *, use_best: bool) -> None:
        """Take a run's trained weights without its optimizer: its best ones, or the newest."""
        ...


class Engine(Protocol):
    """A module that trains: `tunesmith.engines.jax` or `tunesmith.engines.hf`."""

    def processes(self) -> int | None:
        """Processes that `train` is to start for this machine's devices.

        None means that this one does the work itself: there is one device, or JAX drives all of
        them, or a launcher has started this process as one of several.
        """
        ...

    def launch(self, count: int, arguments: Sequence[str]) -> int:
        """Run `tunesmith ARGUMENTS` as so many processes; the exit status of the whole."""
        ...

    def start(self) -> bool:
        """Join the run's other processes, if there are any; whether this one writes the files."""
        ...

    def open_session(
        self, model_dir: Path, *, adapter_dir: Path | None = None, compute_dtype: str = "auto"
    ) -> Session:
        """Load weights to score and generate with, an adapter merged into them."""
        ...

    def open_trainer(self, recipe: Recipe, model_dir: Path) -> Session:
        """Load weights to train as the recipe says, with LoRA also fresh adapters."""
        ...

    def train(
        self,
        session: Session,
        recipe: Recipe,
        data: PreparedData,
        run: RunDir,
        log: MetricsLog,
        say: Say,
        *,
        measure: Measure | None = None,
    ) -> TrainResult:
        """Train the session's weights, from the run's newest checkpoint if it has one.

        The session's weights are the best ones afterwards (`run.use_best`), or the last.

        Args:
            session: from `open_trainer`.
            recipe, data, run: what to train, on what and where.
            log: takes the figures.
            say: told what goes on.
            measure: called at each evaluation, on every process; the log takes what it gives.

        Raises:
            Diverged: a loss or gradient was not finite; the step is named and nothing of it is
                saved.
        """
        ...

    def estimate(
        self, recipe: Recipe, config_dir: Path, *, device_count: int, say: Say
    ) -> Estimate:
        """Memory of a training step of the model whose config.json lies in a directory.

        It changes much in its process: `engines.estimate` gives it one of its own.

        Raises:
            UserError: the recipe does not fit the model or the devices.
        """
        ...

    def peak_bytes(self) -> int:
        """Most memory used so far: of the devices, or of the process where there are none."""
        ...


def load_engine(name: str) -> Engine:
    """Import an engine by its recipe name; its libraries load here and nowhere else.

    Raises:
        UserError: the engine is not there yet, or its libraries are not installed.
    """
    try:
        module: Any = importlib.import_module(f"tunesmith.engines.{name}")
    except ModuleNotFoundError as error:
        if error.name == f"tunesmith.engines.{name}":
            raise UserError(f"engine: {name} is not offered yet", "Use `engine: jax`.") from error
        raise UserError(
            f"engine: {name} needs the package {error.name}",
            f"Install it with: pip install 'tunesmith[{name}]'",
        ) from error
    return module
