"""Training with Accelerate: what the loop of `engines.loop` asks for."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from tunesmith.data.dataset import PackedDataset, PreparedData
from tunesmith.engines.contract import LossSum, Measure, Say, TrainResult
from tunesmith.engines.hf.checkpoint import Checkpoints
from tunesmith.engines.hf.precision import is_sharded
from tunesmith.engines.hf.session import HfSession
from tunesmith.engines.loop import Progress, StepFigures, run_loop
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import MetricsLog
from tunesmith.runs.rundir import RunDir

# Beyond it AdamW's own arithmetic raises; with it a run diverges as it would, and is told so.
_LARGEST_RATE = 1e30


def train(
    session: HfSession,
    recipe: Recipe,
    data: PreparedData,
    run: RunDir,
    log: MetricsLog,
    say: Say,
    *,
    measure: Measure | None = None,
) -> TrainResult:
    """Train the session's weights; see `engines.contract.Engine.train`."""
    checkpoints = Checkpoints(run.checkpoints, keep=recipe.train.checkpoints.keep)
    trainer = HfTrainer(session, recipe, data, checkpoints)
    return run_loop(trainer, recipe, data, log, say, measure=measure)


class HfTrainer:
    """A session's weights, their optimizer and their checkpoints: see `engines.loop.Trainer`."""

    def __init__(
        self, session: HfSession, recipe: Recipe, data: PreparedData, checkpoints: Checkpoints
    ) -> None:
        assert session.optimizer is not None
        self._session, self._data, self._checkpoints = session, data, checkpoints
        self._settings = recipe.train
        self._optimizer: Any = session.optimizer
        self._accelerator = session.accelerator
        share = recipe.train.batch_size // self._accelerator.num_processes
        self._micro = recipe.train.micro_batch_size or share

    @property
    def vocab_size(self) -> int:
        """Tokens of the model's vocabulary."""
        return self._session.text_config.vocab_size

    def restore(self, say: Say) -> Progress:
        """Take weights and optimizer from the newest readable checkpoint."""
        optimizer = self._optimizer.optimizer
        return self._checkpoints.restore(self._session.trainable, optimizer, say)

    def step(self, step: int, learning_rate: float) -> StepFigures:
        """Take one optimizer step.

        The loss is summed over target tokens and divided by their number in the whole batch, over
        all passes and processes (https://github.com/huggingface/transformers/issues/34191).
        """
        accelerator, settings = self._accelerator, self._settings
        begun = time.perf_counter()
        shard = accelerator.process_index, accelerator.num_processes
        batch = self._data.train.batch(
            step, batch_size=settings.batch_size, seed=settings.seed, shard=shard
        )
        waited = time.perf_counter() - begun
        counted = torch.tensor(
            [int((batch.segment_ids > 0).sum()), int(batch.target_mask.sum())],
            device=accelerator.device,
        )
        tokens, targets = (int(n) for n in accelerator.reduce(counted))  # type: ignore[union-attr]

        # Dropout is a function of the step, so that nothing of it need be saved.
        torch.manual_seed(_step_seed(settings.seed, step, accelerator.process_index))
        total = self._gradients(batch, max(1, targets))
        loss = float(accelerator.reduce(total)) / max(1, targets)  # type: ignore[arg-type]
        grad_norm = self._clip()
        applied = bool(np.isfinite(loss) and np.isfinite(grad_norm))
        if applied:
            for group in self._optimizer.param_groups:
                group["lr"] = min(learning_rate, _LARGEST_RATE)
            self._optimizer.step()
        self._optimizer.zero_grad()
        return StepFigures(loss, grad_norm, applied, tokens, targets, waited)

    def _gradients(self, batch: Any, targets: int) -> torch.Tensor:
        """Accumulate gradients over this process's passes; returns its summed loss."""
        model, accelerator = self._session.model, self._accelerator
        model.train()
        total = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        count = len(batch.tokens)
        for begin in range(0, count, self._micro):
            # Sharded gradients are reduced in each pass: kept back, they would lie whole on each
            # device. Whole ones are summed here first, and cross once.
            waits = begin + self._micro < count and not is_sharded(self._session.module)
            with accelerator.no_sync(model) if waits else nullcontext():
                loss = self._session.loss_sum(model, batch.rows(begin, self._micro))
                # Gradients are averaged over processes, and are meant to be summed.
                accelerator.backward(loss * (accelerator.num_processes / targets))
            total += loss.detach()
        return total

    def _clip(self) -> float:
        """Scale the gradients down to the largest norm allowed; returns the norm before."""
        trained = list(self._session.trainable.values())
        limit = self._settings.max_grad_norm
        norm: Any = torch.nn.utils.clip_grad_norm_(trained, limit or float("inf"))
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def loss(self, dataset: PackedDataset, batch_size: int) -> LossSum:
        """The loss of the weights as they are."""
        return self._session.loss(dataset, batch_size=batch_size)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint to go on from."""
        self._checkpoints.save(self._session.trainable, self._optimizer.optimizer, progress)

    def save_best(self, step: int) -> None:
        """Keep the weights as the best so far."""
        self._checkpoints.save_best(self._session.trainable, step)

    def restore_best(self, step: int) -> None:
        """Take the weights kept as the best."""
        self._checkpoints.restore_best(self._session.trainable, step)


def _step_seed(seed: int, step: int, rank: int) -> int:
    """A seed of its own for each step and process."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)
