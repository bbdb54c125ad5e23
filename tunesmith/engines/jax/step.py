"""One optimizer step: a pure function, shared by training, planning and tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tunesmith.data.types import Batch
from tunesmith.engines.jax.devices import DATA_AXIS, place_rows
from tunesmith.engines.jax.families import gemma3
from tunesmith.engines.jax.head import cross_entropy_sum
from tunesmith.engines.jax.optim import (
    apply_updates,
    clip_factor,
    global_norm,
    make_optimizer,
)
from tunesmith.engines.jax.params import Declared, Params
from tunesmith.models.catalog import ModelConfig
from tunesmith.recipe.schema import TrainSection


class Rows(NamedTuple):
    """A batch on the devices, [A, B, T] each: A micro-batches, B split over the data axis."""

    tokens: jax.Array
    targets: jax.Array
    target_mask: jax.Array
    segment_ids: jax.Array
    positions: jax.Array


class TrainState(NamedTuple):
    """All that a step changes: float32 master weights that train, and their moments."""

    trainable: Params
    optimizer: Any


class StepResult(NamedTuple):
    """Figures of one step, over all devices and passes.

    Attributes:
        loss: nats per target token.
        grad_norm: global norm before clipping.
        applied: false if something was not finite and the step was dropped.
        tokens: int32, padding left out.
        target_tokens: int32, those with a loss.
    """

    loss: jax.Array
    grad_norm: jax.Array
    applied: jax.Array
    tokens: jax.Array
    target_tokens: jax.Array


@dataclass(frozen=True)
class Program:
    """What the compiled functions of one run depend on, besides their arguments.

    Attributes:
        config: the model's shape.
        adapters: how adapters in the tree apply.
        compute_dtype: of the matrix products.
        mesh: devices.
        remat: recompute each layer in the backward pass.
    """

    config: ModelConfig
    adapters: gemma3.Adapters
    compute_dtype: str
    mesh: Mesh
    remat: bool = False


def place_batch(mesh: Mesh, batch: Batch, micro_batches: int = 1) -> Rows:
    """This process's rows of a global batch as micro-batches on its devices."""

    def place(array: np.ndarray) -> jax.Array:
        folded = array.reshape(micro_batches, -1, array.shape[-1])
        return place_rows(mesh, folded, axis=1)

    return Rows(*(place(getattr(batch, field)) for field in Rows._fields))


def cast_matrices(params: Params, declared: dict[str, Declared], dtype: str) -> Params:
    """Matrices in the compute dtype; norm weights stay as they are, for norms work in float32."""
    return {n: p.astype(dtype) if declared[n].decays else p for n, p in params.items()}


def loss_sum(
    program: Program, params: Params, rows: Rows, key: jax.Array | None, embed_trains: bool
) -> jax.Array:
    """Loss of one micro-batch [B, T] on this device, summed over its targets."""
    h_ND = gemma3.hidden_states(
        program.config,
        params,
        rows.tokens,
        rows.segment_ids,
        rows.positions,
        program.adapters,
        key=key,
        remat=program.remat,
    )
    return cross_entropy_sum(
        h_ND, params["embed"], rows.targets.reshape(-1), rows.target_mask.reshape(-1), embed_trains
    )


def _make_sums(
    program: Program, declared: dict[str, Declared], trains: frozenset[str]
) -> Callable[..., tuple[Params, jax.Array, jax.Array, jax.Array]]:
    """`sums(trainable, frozen, rows, key)`: gradients, loss, tokens and targets, all summed over
    the micro-batches of every device."""
    dropout = program.adapters.dropout > 0

    def local_sums(
        trainable: Params, frozen: Params, rows: Rows, key: jax.Array
    ) -> tuple[Params, jax.Array, jax.Array, jax.Array]:
        key = jax.random.fold_in(key, jax.lax.axis_index(DATA_AXIS))

        def micro(carry: tuple, xs: tuple) -> tuple[tuple, None]:
            (grads, total), (micro_rows, index) = carry, xs
            micro_key = jax.random.fold_in(key, index) if dropout else None

            def loss(tree: Params) -> jax.Array:
                params = cast_matrices(frozen | tree, declared, program.compute_dtype)
                return loss_sum(program, params, micro_rows, micro_key, "embed" in trains)

            value, more = jax.value_and_grad(loss)(trainable)
            return (jax.tree.map(jnp.add, grads, more), total + value), None

        count = rows.tokens.shape[0]
        zeros = (jax.tree.map(jnp.zeros_like, trainable), jnp.float32(0.0))
        if count == 1:
            (grads, total), _ = micro(zeros, (jax.tree.map(lambda a: a[0], rows), 0))
        else:
            (grads, total), _ = jax.lax.scan(micro, zeros, (rows, jnp.arange(count)))
        tokens = jnp.sum(rows.segment_ids > 0, dtype=jnp.int32)
        targets = jnp.sum(rows.target_mask, dtype=jnp.int32)
        return jax.lax.psum((grads, total, tokens, targets), DATA_AXIS)

    whole, split = PartitionSpec(), PartitionSpec(None, DATA_AXIS)
    return jax.shard_map(
        local_sums,
        mesh=program.mesh,
        in_specs=(whole, whole, split, whole),
        out_specs=whole,
        check_vma=False,
    )


def make_train_step(
    program: Program, train: TrainSection, declared: dict[str, Declared], trains: frozenset[str]
) -> Callable[..., tuple[TrainState, StepResult]]:
    """Compile-ready `step(state, frozen, rows, learning_rate, key) -> (state, result)`.

    Gradients are summed over micro-batches and devices and divided by the global count of target
    tokens, so that any split of a batch gives the same step. A loss or gradient that is not finite
    leaves the state as it was.

    Args:
        program: model, devices and types.
        train: optimizer and clipping.
        declared: every parameter, frozen ones included.
        trains: names of those that train.
    """
    optimizer = make_optimizer(train, {name: declared[name] for name in sorted(trains)})
    sums = _make_sums(program, declared, trains)

    @partial(jax.jit, donate_argnums=0)
    def step(
        state: TrainState, frozen: Params, rows: Rows, learning_rate: jax.Array, key: jax.Array
    ) -> tuple[TrainState, StepResult]:
        grads, total, tokens, targets = sums(state.trainable, frozen, rows, key)
        count = jnp.maximum(targets, 1).astype(jnp.float32)
        loss = total / count
        grad_norm = global_norm(grads) / count
        factor = clip_factor(grad_norm, train.max_grad_norm) / count

        def update(state: TrainState) -> TrainState:
            scaled = jax.tree.map(lambda g: g * factor, grads)
            updates, moments = optimizer.update(scaled, state.optimizer, state.trainable)
            return TrainState(apply_updates(state.trainable, updates, learning_rate), moments)

        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        state = jax.lax.cond(finite, update, lambda same: same, state)
        return state, StepResult(loss, grad_norm, finite, tokens, targets)

    return step


def make_loss(program: Program) -> Callable[[Params, Rows], jax.Array]:
    """Compile-ready `loss(params, rows)`: summed over all rows, without dropout."""

    def local(params: Params, rows: Rows) -> jax.Array:
        micro = jax.tree.map(lambda a: a[0], rows)
        return jax.lax.psum(loss_sum(program, params, micro, None, False), DATA_AXIS)

    return jax.jit(
        jax.shard_map(
            local,
            mesh=program.mesh,
            in_specs=(PartitionSpec(), PartitionSpec(None, DATA_AXIS)),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )
