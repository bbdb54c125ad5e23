"""Training with JAX: what the loop of `engines.loop` asks for."""

from __future__ import annotations

import time
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np

from tunesmith.data.dataset import PackedDataset, PreparedData
from tunesmith.engines.contract import LossSum, Measure, Say, TrainResult
from tunesmith.engines.jax import devices
from tunesmith.engines.jax.checkpoint import Checkpoints
from tunesmith.engines.jax.optim import make_optimizer
from tunesmith.engines.jax.session import JaxSession
from tunesmith.engines.jax.step import StepResult, TrainState, make_train_step, place_batch
from tunesmith.engines.loop import Progress, StepFigures, micro_batches, run_loop
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import MetricsLog
from tunesmith.runs.rundir import RunDir


def train(
    session: JaxSession,
    recipe: Recipe,
    data: PreparedData,
    run: RunDir,
    log: MetricsLog,
    say: Say,
    *,
    measure: Measure | None = None,
) -> TrainResult:
    """Train the session's weights; see `engines.contract.Engine.train`."""
    keep = recipe.train.checkpoints.keep
    # Closed however training ends: a checkpoint being written at Ctrl-C is written to its end.
    with closing(Checkpoints(run.checkpoints, keep=keep)) as checkpoints:
        trainer = JaxTrainer(session, recipe, data, checkpoints)
        return run_loop(trainer, recipe, data, log, say, measure=measure)


class JaxTrainer:
    """A session's weights, their optimizer and their checkpoints: see `engines.loop.Trainer`."""

    def __init__(
        self, session: JaxSession, recipe: Recipe, data: PreparedData, checkpoints: Checkpoints
    ) -> None:
        mesh, declared = session.program.mesh, session.declared
        self._session, self._data, self._checkpoints = session, data, checkpoints
        self._settings = recipe.train
        self._host = jax.process_index(), jax.process_count()
        self._passes = micro_batches(recipe, hosts=jax.process_count(), devices=mesh.size)

        trains = frozenset(session.trainable)
        optimizer = make_optimizer(recipe.train, {name: declared[name] for name in sorted(trains)})
        # Placed like the weights: otherwise the second step, whose moments are, compiles anew.
        init = jax.jit(optimizer.init, out_shardings=devices.replicated(mesh))
        self._state = TrainState(session.trainable, init(session.trainable))
        self._step = make_train_step(session.program, recipe.train, declared, trains)
        make_key = jax.jit(jax.random.key, out_shardings=devices.replicated(mesh))
        self._key = make_key(recipe.train.seed)

    @property
    def vocab_size(self) -> int:
        """Tokens of the model's vocabulary."""
        return self._session.program.config.vocab_size

    def restore(self, say: Say) -> Progress:
        """Take weights and optimizer from the newest readable checkpoint."""
        self._state, progress = self._checkpoints.restore(self._state, say)
        self._session.trainable = self._state.trainable
        return progress

    def step(self, step: int, learning_rate: float) -> StepFigures:
        """Take one optimizer step."""
        begun = time.perf_counter()
        batch = self._data.train.batch(
            step,
            batch_size=self._settings.batch_size,
            seed=self._settings.seed,
            shard=self._host,
        )
        rows = place_batch(self._session.program.mesh, batch, self._passes)
        waited = time.perf_counter() - begun
        self._state, result = self._step(
            self._state,
            self._session.frozen,
            rows,
            jnp.float32(learning_rate),
            jax.random.fold_in(self._key, step),
        )
        self._session.trainable = self._state.trainable  # the old arrays were donated to the step
        return _to_host(result, waited)

    def loss(self, dataset: PackedDataset, batch_size: int) -> LossSum:
        """The loss of the weights as they are."""
        return self._session.loss(dataset, batch_size=batch_size)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint to go on from."""
        self._checkpoints.save(self._state, progress)

    def save_best(self, step: int) -> None:
        """Keep the weights as the best so far."""
        self._checkpoints.save_best(self._state.trainable, step)

    def restore_best(self, step: int) -> None:
        """Take the weights kept as the best."""
        best = self._checkpoints.restore_best(self._state.trainable, step)
        self._session.trainable = best


def _to_host(result: StepResult, waited: float) -> StepFigures:
    loss, grad_norm, applied, tokens, targets = (np.asarray(a.addressable_data(0)) for a in result)
    return StepFigures(
        float(loss), float(grad_norm), bool(applied), int(tokens), int(targets), waited
    )
