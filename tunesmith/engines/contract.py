"""What an engine offers. Verbs know engines through this module alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tunesmith.data.dataset import PackedDataset, PreparedData
from tunesmith.recipe.schema import Generation, Recipe
from tunesmith.runs.metrics import MetricsLog
from tunesmith.runs.rundir import RunDir

Say = Callable[[str], None]
"""Takes a line for the user about what goes on."""


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
        steps: optimizer steps in all, those before a resume included.
        tokens: tokens trained on since this process started, padding left out.
        target_tokens: tokens with a loss among them.
        seconds: from the first step after compilation to the last.
        tokens_per_second: median over the steps of this process, compilation left out.
        best_step: the step whose weights the session now holds.
    """

    steps: int
    tokens: int
    target_tokens: int
    seconds: float
    tokens_per_second: float | None
    best_step: int


class Session(Protocol):
    """Weights on devices, ready to score, generate, train and export."""

    def loss(self, dataset: PackedDataset, *, batch_size: int, max_rows: int | None) -> LossSum:
        """Sum the loss over a data set in order."""
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
        """Logits [T, V] of one sequence [T], computed in float32."""
        ...

    def export(self, out_dir: Path, *, kind: str, dtype: str) -> None:
        """Write `merged` weights or the `adapter` as a Hugging Face directory."""
        ...


class Engine(Protocol):
    """A module that trains: `tunesmith.engines.jax` or `tunesmith.engines.hf`."""

    def open_session(self, recipe: Recipe, model_dir: Path, *, adapter_dir: Path | None = None) -> Session:
        """Load weights; with LoRA also fresh adapters, or those of `adapter_dir`."""
        ...

    def train(
        self, session: Session, recipe: Recipe, data: PreparedData, run: RunDir, log: MetricsLog, say: Say
    ) -> TrainResult:
        """Train the session's weights, from the run's newest checkpoint if it has one."""
        ...

    def peak_bytes(self) -> int:
        """Most memory used so far: of the devices, or of the process where there are none."""
        ...


def load_engine(name: str) -> Engine:
    """Import an engine by its recipe name; its libraries load here and nowhere else."""
    module: Engine = importlib.import_module(f"tunesmith.engines.{name}")  # type: ignore[assignment]
    return module
