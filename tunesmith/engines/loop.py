"""The training loop of every engine, to be read from top to bottom."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tunesmith.data.dataset import PackedDataset, PreparedData
from tunesmith.engines.contract import LossSum, Measure, Say, TrainResult
from tunesmith.engines.schedule import learning_rate
from tunesmith.errors import Diverged, UserError
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import Line, MetricsLog
from tunesmith.tasks.perplexity import from_loss, guessing_warning

# A line for the user at most this often, in seconds, whatever the length of a step.
_SAY_EVERY = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, saved beside its weights.

    Attributes:
        step: optimizer steps done.
        best_step, best_loss: the evaluation with the least loss so far.
        skipped: steps dropped because they were not finite.
        tokens, target_tokens, seconds: what training has taken so far.
    """

    step: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    skipped: int = 0
    tokens: int = 0
    target_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one optimizer step measured, over all devices and passes.

    Attributes:
        loss: nats per target token.
        grad_norm: global norm before clipping.
        applied: false if something was not finite and the step was dropped.
        tokens: padding left out.
        target_tokens: those with a loss.
        wait_seconds: spent waiting for data.
    """

    loss: float
    grad_norm: float
    applied: bool
    tokens: int
    target_tokens: int
    wait_seconds: float


class Trainer(Protocol):
    """What an engine does for the loop: its weights, their optimizer and their checkpoints."""

    @property
    def vocab_size(self) -> int:
        """Tokens of the model's vocabulary."""
        ...

    def restore(self, say: Say) -> Progress:
        """Take weights and optimizer from the newest readable checkpoint, if there is one."""
        ...

    def step(self, step: int, learning_rate: float) -> StepFigures:
        """Take the optimizer step with this number, counted from 0.

        A loss or gradient that is not finite leaves weights and optimizer as they were.
        """
        ...

    def loss(self, dataset: PackedDataset, batch_size: int) -> LossSum:
        """The loss of the weights as they are."""
        ...

    def save(self, progress: Progress) -> None:
        """Write a checkpoint to go on from."""
        ...

    def save_best(self, step: int) -> None:
        """Keep the weights as the best so far, beside the checkpoints."""
        ...

    def restore_best(self, step: int) -> None:
        """Take the weights kept as the best."""
        ...


def total_steps(recipe: Recipe, data: PreparedData) -> int:
    """Optimizer steps of a run: whole epochs' worth, rounded up, or `max_steps` if that is less."""
    steps = math.ceil(recipe.train.epochs * data.train.steps_per_epoch(recipe.train.batch_size))
    return min(steps, recipe.train.max_steps or steps)


def micro_batches(recipe: Recipe, *, hosts: int, devices: int) -> int:
    """Passes whose gradients a step accumulates.

    Args:
        recipe: gives the batch.
        hosts: machines, for the message.
        devices: of all hosts, each with rows of its own.

    Raises:
        UserError: `batch_size` does not split evenly over the devices and passes.
    """
    batch, micro = recipe.train.batch_size, recipe.train.micro_batch_size
    per_pass = devices * (micro or max(1, batch // devices))
    if batch % per_pass == 0:
        return batch // per_pass
    hosts_text = f"{hosts} host{'s' * (hosts != 1)} with {devices} device{'s' * (devices != 1)}"
    accumulated = f" and micro_batch_size {micro}" if micro else ""
    raise UserError(
        f"train.batch_size {batch} does not split over {hosts_text} in all{accumulated}",
        f"Use a multiple of {devices * (micro or 1)}.",
    )


def run_loop(
    trainer: Trainer,
    recipe: Recipe,
    data: PreparedData,
    log: MetricsLog,
    say: Say,
    *,
    measure: Measure | None = None,
) -> TrainResult:
    """Train from the newest checkpoint, if there is one, to the run's last step.

    The trainer's weights are the best ones afterwards (`run.use_best`), or the last.

    Raises:
        Diverged: a loss or gradient was not finite; the step is named and nothing of it is saved.
    """
    settings = recipe.train
    steps = total_steps(recipe, data)
    progress = trainer.restore(say)
    log.rewind(progress.step)
    if progress.step:
        say(f"goes on after step {progress.step} of {steps}")

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
        rate = learning_rate(settings, step, steps)
        done = trainer.step(step, rate)
        took = time.perf_counter() - begun

        step += 1
        if not done.applied:
            skipped += 1
            _stop_or_skip(recipe, step, done, skipped, say)
        tokens, target_tokens = tokens + done.tokens, target_tokens + done.target_tokens
        if step > progress.step + 1:  # the first step of a process compiles
            seconds.append(took)
            rates.append(done.tokens / took)
        if step == 1 and done.applied and done.target_tokens:
            first = from_loss(done.loss * done.target_tokens, done.target_tokens)
            if warning := guessing_warning(first, trainer.vocab_size):
                say(warning)
        if step % settings.log_every == 0 or step == steps:
            log.append(
                Line(
                    "train",
                    step,
                    done.loss,
                    rate,
                    done.grad_norm,
                    done.tokens,
                    done.target_tokens,
                    took,
                    done.wait_seconds,
                )
            )
        if step in (1, steps) or time.perf_counter() - said > _SAY_EVERY:
            said = time.perf_counter()
            say(_progress_line(step, steps, done.loss, rate, rates, seconds))

        last = step == steps
        evaluates = bool(recipe.eval.every_steps) and (step % recipe.eval.every_steps == 0 or last)
        if evaluates and evaluated is not None:
            measured = trainer.loss(evaluated, recipe.eval.batch_size)
            if not math.isfinite(measured.total):  # the step was finite, but not what it left
                log.append(Line("eval", step, measured.mean, target_tokens=measured.target_tokens))
                raise Diverged(
                    f"step {step}: the evaluation loss is {measured.mean}; nothing of it is saved",
                    _LOWER,
                )
            scores = dict(measure()) if measure else {}
            log.append(
                Line(
                    "eval",
                    step,
                    measured.mean,
                    target_tokens=measured.target_tokens,
                    **scores,  # type: ignore[arg-type]
                )
            )
            better = best_loss is None or measured.mean < best_loss
            say(_evaluation_line(step, measured.mean, scores, better))
            if better:
                best_step, best_loss = step, measured.mean
                trainer.save_best(step)
        if last or (save_every and step % save_every == 0):
            spent = time.perf_counter() - started
            trainer.save(
                Progress(step, best_step, best_loss, skipped, tokens, target_tokens, spent)
            )

    if recipe.run.use_best and best_step is not None and best_step != step:
        trainer.restore_best(best_step)
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


_LOWER = (
    "Lower train.learning_rate, or set train.max_grad_norm; a changed recipe needs a run folder "
    "of its own: `--set run.dir=NEW`."
)


def _stop_or_skip(recipe: Recipe, step: int, done: StepFigures, skipped: int, say: Say) -> None:
    settings = recipe.train
    what = f"step {step}: loss {done.loss}, gradient norm {done.grad_norm}: not finite"
    if settings.on_nonfinite == "stop" or skipped > settings.max_skipped_steps:
        raise Diverged(f"{what}; the last checkpoint, if there is one, is from before it", _LOWER)
    say(f"{what}; step dropped ({skipped} of {settings.max_skipped_steps} allowed)")


def _progress_line(
    step: int, steps: int, loss: float, rate: float, rates: list[float], seconds: list[float]
) -> str:
    line = f"step {step}/{steps}  loss {loss:.4f}  learning rate {rate:.2e}"
    if seconds:
        left = statistics.median(seconds) * (steps - step)
        line += f"  {statistics.median(rates):,.0f} tokens/s  {left / 60:.1f} min left"
    return line


def _evaluation_line(step: int, loss: float, scores: Mapping[str, float], better: bool) -> str:
    line = f"step {step}: evaluation loss {loss:.4f}{' (best so far)' * better}"
    return line + "".join(f", {name.replace('_', ' ')} {v:.1%}" for name, v in scores.items())
