"""The training loop, to be read from top to bottom."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np

from tunesmith.data.dataset import PreparedData
from tunesmith.engines.contract import Say, TrainResult
from tunesmith.engines.jax import devices
from tunesmith.engines.jax.checkpoint import Checkpoints, Progress
from tunesmith.engines.jax.optim import make_optimizer
from tunesmith.engines.jax.session import JaxSession
from tunesmith.engines.jax.step import StepResult, TrainState, make_train_step, place_batch
from tunesmith.engines.schedule import learning_rate
from tunesmith.errors import Diverged
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import Line, MetricsLog
from tunesmith.runs.rundir import RunDir
from tunesmith.tasks.perplexity import from_loss, guessing_warning

# A line for the user at most this often, in seconds, whatever the length of a step.
_SAY_EVERY = 10.0


def total_steps(recipe: Recipe, data: PreparedData) -> int:
    """Optimizer steps of a run: whole epochs' worth, rounded up, or `max_steps` if that is less."""
    steps = math.ceil(recipe.train.epochs * data.train.steps_per_epoch(recipe.train.batch_size))
    return min(steps, recipe.train.max_steps or steps)


def train(
    session: JaxSession,
    recipe: Recipe,
    data: PreparedData,
    run: RunDir,
    log: MetricsLog,
    say: Say,
) -> TrainResult:
    """Train the session's weights, from the run's newest checkpoint if it has one.

    The session's weights are the best ones afterwards (`run.use_best`), or the last.

    Raises:
        Diverged: a loss or gradient was not finite; the step is named and nothing of it is saved.
    """
    keep = recipe.train.checkpoints.keep
    # Closed however training ends: a checkpoint being written at Ctrl-C is written to its end.
    with closing(Checkpoints(run.checkpoints, keep=keep)) as checkpoints:
        return _train(session, recipe, data, checkpoints, log, say)


def _train(
    session: JaxSession,
    recipe: Recipe,
    data: PreparedData,
    checkpoints: Checkpoints,
    log: MetricsLog,
    say: Say,
) -> TrainResult:
    settings = recipe.train
    mesh, declared = session.program.mesh, session.declared
    hosts, host = jax.process_count(), jax.process_index()
    micro_batches = devices.check_batch(recipe, hosts=hosts, devices=mesh.size)
    steps = total_steps(recipe, data)

    trains = frozenset(session.trainable)
    optimizer = make_optimizer(settings, {name: declared[name] for name in sorted(trains)})
    # Placed like the weights: otherwise the second step, whose moments are, compiles anew.
    init = jax.jit(optimizer.init, out_shardings=devices.replicated(mesh))
    state = TrainState(session.trainable, init(session.trainable))
    state, progress = checkpoints.restore(state, say)
    session.trainable = state.trainable
    log.rewind(progress.step)
    if progress.step:
        say(f"goes on after step {progress.step} of {steps}")

    step_fn = make_train_step(session.program, settings, declared, trains)
    key = jax.jit(jax.random.key, out_shardings=devices.replicated(mesh))(settings.seed)
    evaluated = data.eval and data.eval.first_rows(recipe.eval.max_rows or data.eval.num_examples)
    save_every = settings.checkpoints.every_steps or recipe.eval.every_steps
    step, skipped = progress.step, progress.skipped
    best_step, best_loss = progress.best_step, progress.best_loss
    seconds: list[float] = []
    rates: list[float] = []
    tokens, target_tokens = progress.tokens, progress.target_tokens
    started, said = time.perf_counter() - progress.seconds, time.perf_counter()

    while step < steps:
        begun = time.perf_counter()
        batch = data.train.batch(
            step, batch_size=settings.batch_size, seed=settings.seed, shard=(host, hosts)
        )
        rows = place_batch(mesh, batch, micro_batches)
        waited = time.perf_counter() - begun
        rate = learning_rate(settings, step, steps)
        state, result = step_fn(
            state, session.frozen, rows, jnp.float32(rate), jax.random.fold_in(key, step)
        )
        session.trainable = state.trainable  # the old arrays were donated to the step
        loss, grad_norm, applied, counted, targets = _to_host(result)
        took = time.perf_counter() - begun

        step += 1
        if not applied:
            skipped += 1
            _stop_or_skip(recipe, step, loss, grad_norm, skipped, say)
        tokens, target_tokens = tokens + counted, target_tokens + targets
        if step > progress.step + 1:  # the first step of a process compiles
            seconds.append(took)
            rates.append(counted / took)
        if step == 1 and applied and targets:
            vocabulary = session.program.config.vocab_size
            if warning := guessing_warning(from_loss(loss * targets, targets), vocabulary):
                say(warning)
        if step % settings.log_every == 0 or step == steps:
            log.append(Line("train", step, loss, rate, grad_norm, counted, targets, took, waited))
        if step in (1, steps) or time.perf_counter() - said > _SAY_EVERY:
            said = time.perf_counter()
            say(_progress_line(step, steps, loss, rate, rates, seconds))

        last = step == steps
        evaluates = bool(recipe.eval.every_steps) and (step % recipe.eval.every_steps == 0 or last)
        if evaluates and evaluated is not None:
            measured = session.loss(evaluated, batch_size=recipe.eval.batch_size)
            log.append(Line("eval", step, measured.mean, target_tokens=measured.target_tokens))
            if not math.isfinite(measured.total):  # the step was finite, but not what it left
                raise Diverged(
                    f"step {step}: the evaluation loss is {measured.mean}; nothing of it is saved",
                    "Lower train.learning_rate, or set train.max_grad_norm.",
                )
            better = best_loss is None or measured.mean < best_loss
            say(f"step {step}: evaluation loss {measured.mean:.4f}{' (best so far)' * better}")
            if better:
                best_step, best_loss = step, measured.mean
                checkpoints.save_best(state.trainable, step)
        if last or (save_every and step % save_every == 0):
            spent = time.perf_counter() - started
            checkpoints.save(
                state,
                Progress(step, best_step, best_loss, skipped, tokens, target_tokens, spent),
            )

    if recipe.run.use_best and best_step is not None and best_step != step:
        session.trainable = checkpoints.restore_best(state.trainable, best_step)
        say(f"takes the weights of step {best_step}, whose evaluation loss was least")
    else:
        best_step = step
    return TrainResult(
        steps=step,
        tokens=tokens,
        target_tokens=target_tokens,
        seconds=time.perf_counter() - started,
        tokens_per_second=statistics.median(rates) if rates else None,
        best_step=best_step,
    )


def _to_host(result: StepResult) -> tuple[float, float, bool, int, int]:
    loss, grad_norm, applied, tokens, targets = (np.asarray(a.addressable_data(0)) for a in result)
    return float(loss), float(grad_norm), bool(applied), int(tokens), int(targets)


def _stop_or_skip(
    recipe: Recipe, step: int, loss: float, grad_norm: float, skipped: int, say: Say
) -> None:
    settings = recipe.train
    what = f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite"
    if settings.on_nonfinite == "stop" or skipped > settings.max_skipped_steps:
        raise Diverged(
            f"{what}; the last checkpoint, if there is one, is from before it",
            "Lower train.learning_rate, or set train.max_grad_norm.",
        )
    say(f"{what}; step dropped ({skipped} of {settings.max_skipped_steps} allowed)")


def _progress_line(
    step: int, steps: int, loss: float, rate: float, rates: list[float], seconds: list[float]
) -> str:
    line = f"step {step}/{steps}  loss {loss:.4f}  learning rate {rate:.2e}"
    if seconds:
        left = statistics.median(seconds) * (steps - step)
        line += f"  {statistics.median(rates):,.0f} tokens/s  {left / 60:.1f} min left"
    return line
