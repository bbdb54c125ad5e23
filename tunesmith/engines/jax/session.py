"""A session: weights on the devices, and all that can be done with them but training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tunesmith.data.dataset import PackedDataset
from tunesmith.data.types import Batch
from tunesmith.engines.contract import Completion, LossSum, Say
from tunesmith.engines.jax import devices, export
from tunesmith.engines.jax.checkpoint import Checkpoints
from tunesmith.engines.jax.families import gemma3
from tunesmith.engines.jax.generate import Generator
from tunesmith.engines.jax.params import (
    Declared,
    Params,
    declare,
    declare_lora,
    init_lora,
    load_params,
)
from tunesmith.engines.jax.step import Program, cast_matrices, make_loss, place_batch
from tunesmith.errors import UserError
from tunesmith.models.adapter import merged, read_adapter
from tunesmith.models.catalog import load_config
from tunesmith.models.weights import read_weights
from tunesmith.recipe.schema import Generation, LoraSection, Recipe
from tunesmith.runs.rundir import RunDir


class JaxSession:
    """Weights of one model on the devices.

    Attributes:
        model_dir: the base model.
        program: shape, devices and types that the compiled functions share.
        declared: every parameter, frozen and trained.
        frozen: base weights with LoRA, in the compute dtype (norms in float32); empty otherwise.
        trainable: float32 master weights.
        lora: the adapters' figures, if there are any.
    """

    def __init__(
        self,
        model_dir: Path,
        program: Program,
        declared: dict[str, Declared],
        frozen: Params,
        trainable: Params,
        lora: LoraSection | None,
    ) -> None:
        self.model_dir = model_dir
        self.program = program
        self.declared = declared
        self.frozen = frozen
        self.trainable = trainable
        self.lora = lora
        self._loss = make_loss(program)

    @property
    def held_dtype(self) -> str:
        """Type of the frozen matrices."""
        return self.program.compute_dtype if self.frozen else "float32"

    def params(self, dtype: str | None = None) -> Params:
        """All weights in one tree, matrices in the compute dtype or the one given."""
        return cast_matrices(
            self.frozen | self.trainable, self.declared, dtype or self.program.compute_dtype
        )

    def loss(
        self,
        dataset: PackedDataset,
        *,
        batch_size: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> LossSum:
        """Sum the loss over a data set; see `engines.contract.Session.loss`."""
        mesh, params = self.program.mesh, self.params()
        batch_size = -(-batch_size // mesh.size) * mesh.size
        total, targets, sequences = 0.0, 0, 0
        for batch in dataset.in_order(batch_size):
            total += float(self._loss(params, place_batch(mesh, _host_part(batch))))
            targets += int(batch.target_mask.sum())
            sequences = min(sequences + batch_size, dataset.num_sequences)
            if progress:
                progress(sequences, dataset.num_sequences)
        return LossSum(total, targets)

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
        """Continue each prompt; see `engines.contract.Session.generate`."""
        local = jax.tree.map(lambda a: a.addressable_data(0), self.params())
        generator = Generator(self.program.config, local, self.program.adapters, stop_ids, settings)
        return generator.run(prompts, batch_size, done, progress)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """Logits [T, V] of one sequence, computed in float32 from the weights in memory."""
        local = jax.tree.map(lambda a: a.addressable_data(0), self.params("float32"))
        # Padded behind, where causal attention sees nothing of it, so that few lengths compile.
        tokens = np.zeros((1, -(-len(ids) // 64) * 64), np.int32)
        tokens[0, : len(ids)] = ids
        adapters = gemma3.Adapters(self.program.adapters.scale)
        with jax.default_matmul_precision("highest"):
            padded = _logits(self.program.config, adapters, local, jnp.asarray(tokens))
        return np.asarray(padded)[: len(ids)]

    def export(self, out_dir: Path | None, *, kind: str, dtype: str) -> None:
        """Write `merged` weights or the `adapter`; see `engines.jax.export`."""
        if out_dir is None:  # every process holds the weights whole
            return
        trained = {name: devices.to_host(array) for name, array in self.trainable.items()}
        export.write(
            out_dir, self.model_dir, self.program.config, trained, self.lora, kind=kind, dtype=dtype
        )

    def take_weights(self, run: RunDir, say: Say, *, use_best: bool) -> None:
        """Take a run's trained weights; see `engines.contract.Session.take_weights`.

        Raises:
            UserError: the run has no readable checkpoint, or trained other weights.
        """
        checkpoints = Checkpoints(run.checkpoints, keep=1)
        self.trainable, step = checkpoints.restore_weights(self.trainable, say, use_best=use_best)
        checkpoints.close()
        say(f"takes the weights of {run.path} after step {step}")


@partial(jax.jit, static_argnums=(0, 1))
def _logits(
    config: gemma3.ModelConfig, adapters: gemma3.Adapters, params: Params, tokens: jax.Array
) -> jax.Array:
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    ones = jnp.ones_like(tokens)
    return gemma3.logits(
        params, gemma3.hidden_states(config, params, tokens, ones, positions, adapters)
    )


def _host_part(batch: Batch) -> Batch:
    """This process's contiguous share of a global batch."""
    count, index = jax.process_count(), jax.process_index()
    size = batch.tokens.shape[0] // count
    return batch.rows(index * size, size)


def open_session(
    model_dir: Path, *, adapter_dir: Path | None = None, compute_dtype: str = "auto"
) -> JaxSession:
    """Load a model to score and generate with, an adapter merged into it.

    Raises:
        UserError: the model or adapter cannot be read.
    """
    mesh = devices.all_devices()
    config = load_config(model_dir)
    weights: Mapping[str, np.ndarray] = read_weights(model_dir, config, dtype="float32")
    if adapter_dir:
        weights = merged(weights, read_adapter(adapter_dir, config))
    dtype = devices.settle_dtype(compute_dtype)
    declared = declare(config)
    frozen = load_params(config, weights, _types(declared, dtype), _placer(mesh))
    program = Program(config, gemma3.Adapters(), dtype, mesh)
    return JaxSession(model_dir, program, declared, frozen, {}, None)


def open_trainer(recipe: Recipe, model_dir: Path) -> JaxSession:
    """Load a model to train as the recipe says, with LoRA also fresh adapters.

    Raises:
        UserError: the model cannot be read, or the recipe does not fit it or the devices.
    """
    mesh = devices.make_mesh(recipe)
    config = load_config(model_dir)
    longest = recipe.data.max_length
    if longest > config.max_position:
        raise UserError(
            f"data.max_length {longest} is above the model's {config.max_position} positions",
            f"Set it to {config.max_position} or less.",
        )
    dtype = devices.settle_dtype(recipe.train.compute_dtype)
    weights = read_weights(model_dir, config, dtype="float32")
    place, base, lora = _placer(mesh), declare(config), recipe.lora
    if lora is None:
        adapters, declared = gemma3.Adapters(), base
        frozen, trainable = {}, load_params(config, weights, "float32", place)
    else:
        adapters = gemma3.Adapters(lora.alpha / lora.r, lora.dropout)
        declared = base | declare_lora(config, lora)
        frozen = load_params(config, weights, _types(base, dtype), place)
        start = init_lora(config, lora, recipe.train.seed)
        trainable = {name: place(array) for name, array in start.items()}
    program = Program(config, adapters, dtype, mesh, remat=recipe.train.remat == "layer")
    return JaxSession(model_dir, program, declared, frozen, trainable, lora)


def _placer(mesh: Mesh) -> Callable[[np.ndarray], jax.Array]:
    return lambda array: jax.device_put(array, devices.replicated(mesh))


def _types(declared: dict[str, Declared], dtype: str) -> dict[str, str]:
    """Types of frozen weights: matrices in the compute dtype, norms in float32."""
    return {name: dtype if d.decays else "float32" for name, d in declared.items()}
