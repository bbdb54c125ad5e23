"""Short ways to train, ask and compare a tiny model of the JAX engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tunesmith.data.types import Batch
from tunesmith.engines.jax import devices
from tunesmith.engines.jax.optim import make_optimizer
from tunesmith.engines.jax.params import Params
from tunesmith.engines.jax.session import JaxSession, open_trainer
from tunesmith.engines.jax.step import (
    Rows,
    StepResult,
    TrainState,
    cast_matrices,
    loss_sum,
    make_train_step,
    place_batch,
)
from tunesmith.recipe.schema import Recipe

BOS = 2
FIRST_WORD = 120  # ids from here on are ordinary tokens of the tiny tokenizer


def tiny_recipe(
    model_dir: Path, *, files: Sequence[str] = ("none.txt",), **sections: Any
) -> Recipe:
    """A recipe in float32 for a model directory; sections are plain dictionaries."""
    data = {"train": {"files": list(files), "format": "text"}, "max_length": 32}
    train = {"learning_rate": 1e-3, "batch_size": 4, "compute_dtype": "float32"}
    values: dict[str, Any] = {
        "name": "tiny",
        "model": {"source": "dir", "id": str(model_dir)},
        "data": data | sections.pop("data", {}),
        "train": train | sections.pop("train", {}),
    }
    if "lora" in sections:
        values["train"]["method"] = "lora"
    return Recipe.model_validate(values | sections)


def open_tiny(model_dir: Path, **sections: Any) -> JaxSession:
    """A session that trains as `tiny_recipe` says."""
    return open_trainer(tiny_recipe(model_dir, **sections), model_dir)


def words(rng: np.random.Generator, length: int, vocab: int = 512) -> np.ndarray:
    """Ordinary tokens behind a BOS: int32 [length]."""
    ids = rng.integers(FIRST_WORD, vocab, length, dtype=np.int32)
    ids[0] = BOS
    return ids


def batch_of(*sequences: Sequence[np.ndarray], length: int, prompt: int = 1) -> Batch:
    """Each sequence holds the given segments, one behind another, padded to `length`.

    Args:
        sequences: segments, int32 [T] each.
        length: T of the batch.
        prompt: tokens at the front of each segment that are no targets.
    """
    shape = (len(sequences), length)
    tokens, targets, segment_ids, positions = (np.zeros(shape, np.int32) for _ in range(4))
    mask = np.zeros(shape, bool)
    for b, segments in enumerate(sequences):
        at = 0
        for number, ids in enumerate(segments, 1):
            end = at + len(ids)
            tokens[b, at:end], segment_ids[b, at:end] = ids, number
            positions[b, at:end] = np.arange(len(ids))
            targets[b, at : end - 1] = ids[1:]
            mask[b, at + prompt - 1 : end - 1] = True
            at = end
    return Batch(tokens, np.where(mask, targets, 0), mask, segment_ids, positions)


class Gradients:
    """Summed loss of a batch and its gradients by stacked name, from the step's own loss."""

    def __init__(self, session: JaxSession) -> None:
        self._session = session
        program, embed_trains = session.program, "embed" in session.trainable

        @jax.jit
        def both(trainable: Params, rows: Rows) -> tuple[jax.Array, Params]:
            def loss(tree: Params) -> jax.Array:
                params = cast_matrices(
                    session.frozen | tree, session.declared, program.compute_dtype
                )
                return loss_sum(program, params, rows, None, embed_trains)

            return jax.value_and_grad(loss)(trainable)

        self._both = both

    def __call__(self, batch: Batch) -> tuple[float, dict[str, np.ndarray]]:
        rows = jax.tree.map(lambda a: a[0], place_batch(self._session.program.mesh, batch))
        total, gradients = self._both(self._session.trainable, rows)
        return float(total), {name: np.asarray(gradient) for name, gradient in gradients.items()}


class Stepper:
    """Optimizer steps, compiled once for each shape: a second program would be an error."""

    def __init__(self, session: JaxSession, recipe: Recipe) -> None:
        self.session, self.recipe = session, recipe
        mesh, trains = session.program.mesh, frozenset(session.trainable)
        optimizer = make_optimizer(recipe.train, {n: session.declared[n] for n in sorted(trains)})
        self._init = jax.jit(optimizer.init, out_shardings=devices.replicated(mesh))
        self._step = make_train_step(session.program, recipe.train, session.declared, trains)
        self._programs: dict[tuple[int, ...], Any] = {}
        self._key = jax.device_put(jax.random.key(0), devices.replicated(mesh))
        self.restart()

    def restart(self) -> None:
        """Go back to the session's weights."""
        # Copied, for a step takes its input's memory.
        weights = {name: jnp.copy(array) for name, array in self.session.trainable.items()}
        self.state = TrainState(weights, self._init(weights))
        self.count = 0

    def __call__(self, batch: Batch, *, rate: float | None = None, micro: int = 1) -> StepResult:
        """Take a step; `micro` passes accumulate its gradients."""
        rows = place_batch(self.session.program.mesh, batch, micro)
        rate = self.recipe.train.learning_rate if rate is None else rate
        key = jax.random.fold_in(self._key, self.count)
        arguments = (self.state, self.session.frozen, rows, jnp.float32(rate), key)
        shape = rows.tokens.shape
        if shape not in self._programs:
            self._programs[shape] = self._step.lower(*arguments).compile()
        self.state, result = self._programs[shape](*arguments)
        self.count += 1
        return result

    def programs(self) -> list[str]:
        """What was compiled, as text."""
        return [program.as_text() for program in self._programs.values()]

    def weights(self) -> dict[str, np.ndarray]:
        """The trained weights, on the host."""
        return {name: np.array(array) for name, array in self.state.trainable.items()}


def largest_gap(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Largest difference between two trees with the same names."""
    assert ours.keys() == theirs.keys()
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def unstacked(session: JaxSession, tree: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of single layers by the names of `models.weights.parameter_specs`."""
    for name, array in tree.items():
        if not name.startswith("layers."):
            yield name, array
            continue
        for layer in range(session.program.config.num_layers):
            yield name.replace("layers.", f"layers.{layer}.", 1), array[layer]


def collect() -> tuple[list[str], Callable[[str], None]]:
    """A list of lines, and what takes each line that is said."""
    lines: list[str] = []
    return lines, lines.append
