"""AdamW over the tree that trains, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from tunesmith.engines.jax.params import Declared, Params
from tunesmith.recipe.schema import TrainSection


def make_optimizer(
    train: TrainSection, declared: Mapping[str, Declared]
) -> optax.GradientTransformation:
    """AdamW without its learning rate, which is a step's argument: the host computes it.

    Args:
        train: optimizer figures.
        declared: of the parameters that train; says which ones weight decay applies to.
    """
    adam = train.optimizer
    decays = {name: parameter.decays for name, parameter in declared.items()}
    return optax.chain(
        optax.scale_by_adam(b1=adam.beta1, b2=adam.beta2, eps=adam.eps),
        optax.add_decayed_weights(adam.weight_decay, mask=decays)
        if adam.weight_decay
        else optax.identity(),
    )


def global_norm(gradients: Params) -> jax.Array:
    """Euclidean norm of all gradients together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(gradient)) for gradient in gradients.values()))


def clip_factor(grad_norm: jax.Array, max_norm: float | None) -> jax.Array | float:
    """What gradients are multiplied by so that their global norm stays within `max_norm`.

    The 1e-6 is torch's (`clip_grad_norm_`), so that both engines clip alike.
    """
    if max_norm is None:
        return 1.0
    return jnp.minimum(1.0, max_norm / (grad_norm + 1e-6))


def apply_updates(params: Params, updates: optax.Updates, learning_rate: jax.Array) -> Params:
    """`params - learning_rate * updates`."""
    return jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
