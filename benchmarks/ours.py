"""Trains a recipe for a few steps and prints, as one JSON line, what they took.

    python -m benchmarks.ours RECIPE [--set a.b=value ...] [--steps 10] [--warmup 1]

The steps are those of `tunesmith train`, taken by its own loop on the recipe's own batches, the
wait for data included. What comes before and after them (evaluation, checkpoints, export) is left
out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.flops import training_flops
from tunesmith.data.dataset import PreparedData
from tunesmith.engines.contract import Engine, load_engine
from tunesmith.errors import UserError
from tunesmith.models.catalog import load_config
from tunesmith.prepare import prepare_run
from tunesmith.recipe.load import LoadedRecipe, load_recipe
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import Line, MetricsLog
from tunesmith.runs.rundir import RunDir, make_manifest

DESCRIPTION = "Train a recipe for a few steps and print one JSON line: what they took."

# The recipe as it is, but short, with a line for each step and nothing between the steps.
_SHORT = (
    "train.max_steps={steps}",
    "train.epochs={steps}",
    "train.log_every=1",
    "train.checkpoints.every_steps=null",
    "eval.every_steps=null",
)


class _Enough(Exception):
    """All steps are taken; ends training before it writes a checkpoint that nobody needs."""


class _Recorder(MetricsLog):
    """Keeps the lines of the steps, and the most memory used by then."""

    def __init__(self, steps: int, peak_bytes: Callable[[], int]) -> None:
        super().__init__(Path(os.devnull), writes=False)
        self.lines: list[Line] = []
        self.peak_bytes = 0
        self._steps, self._measure = steps, peak_bytes

    def append(self, line: Line) -> None:
        """Keep a line; the last one ends the training."""
        self.lines.append(line)
        self.peak_bytes = self._measure()
        if len(self.lines) == self._steps:
            raise _Enough


def measure(loaded: LoadedRecipe, *, warmup: int) -> dict[str, Any]:
    """Train `train.max_steps` steps, the first `warmup` of which are not counted.

    Raises:
        UserError: the recipe cannot be trained.
    """
    recipe = loaded.recipe
    engine = load_engine(recipe.engine)
    engine.start()
    prepared = prepare_run(loaded, _say)
    log = _train(engine, recipe, prepared.data, prepared.model_dir)
    figures = summarise(log.lines, warmup)
    flops = training_flops(
        load_config(prepared.model_dir),
        recipe.lora,
        sum(figures["tokens"]),
        sum(figures["target_tokens"]),
    )
    manifest = make_manifest(
        data_fingerprint=prepared.data.fingerprint,
        seed=recipe.train.seed,
        model=prepared.model_dir.name,
    )
    return figures | {
        "flops_per_token": round(flops / sum(figures["tokens"])),
        "peak_bytes": log.peak_bytes,
        "recipe": recipe.name,
        "method": recipe.train.method,
        "compute_dtype": _compute_dtype(recipe),
        **{key: manifest[key] for key in ("model", "versions", "git_commit", "data_fingerprint")},
    }


def summarise(lines: Sequence[Line], warmup: int) -> dict[str, Any]:
    """Figures of the steps after the warm-up; the losses are of all steps, to compare by.

    `compile_seconds` is what the first step took beyond the median of the counted ones.
    """
    counted = lines[warmup:]
    tokens = [line.tokens or 0 for line in counted]
    targets = [line.target_tokens or 0 for line in counted]
    seconds = [line.step_seconds or 0.0 for line in counted]
    return {
        "real_tokens_per_second": round(sum(tokens) / sum(seconds), 2),
        "target_tokens_per_second": round(sum(targets) / sum(seconds), 2),
        "tokens": tokens,
        "target_tokens": targets,
        "step_seconds": [round(took, 4) for took in seconds],
        "compile_seconds": round((lines[0].step_seconds or 0.0) - statistics.median(seconds), 2),
        "losses": [round(line.loss, 5) for line in lines],
    }


def _train(engine: Engine, recipe: Recipe, data: PreparedData, model_dir: Path) -> _Recorder:
    session = engine.open_trainer(recipe, model_dir)
    log = _Recorder(recipe.train.max_steps or 1, engine.peak_bytes)
    with tempfile.TemporaryDirectory() as folder:
        try:
            engine.train(session, recipe, data, RunDir(Path(folder)), log, _say)
        except _Enough:
            return log
    raise UserError("training ended before the steps that were asked for")


def _compute_dtype(recipe: Recipe) -> str:
    """The type that `auto` stands for here."""
    from tunesmith.engines.jax.devices import settle_dtype

    return settle_dtype(recipe.train.compute_dtype)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the recipe named on the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.ours", description=DESCRIPTION)
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--set", dest="overrides", metavar="A.B=VALUE", action="append", default=[])
    parser.add_argument("--steps", type=int, default=10, help="steps to count (10)")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them (1)")
    arguments = parser.parse_args(argv)
    if arguments.steps < 1 or arguments.warmup < 1:
        parser.error("--steps and --warmup must be 1 or more: the first step compiles")
    steps = arguments.warmup + arguments.steps
    overrides = [*arguments.overrides, *(text.format(steps=steps) for text in _SHORT)]
    try:
        figures = measure(load_recipe(arguments.recipe, overrides), warmup=arguments.warmup)
    except UserError as error:
        _say(f"error: {error}")
        return error.exit_code
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
