"""Low-rank adapters, applied beside the frozen weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), with PEFT's conventions.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from tunesmith.engines.jax.layers import Linear
from tunesmith.engines.jax.params import LORA_A, LORA_B


def make_linear(
    weights: Mapping[str, jax.Array],
    adapters: Mapping[str, jax.Array],
    scale: float,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> Linear:
    """The `linear` of one layer.

    Args:
        weights: the layer's arrays by short name, [out, in].
        adapters: its A [r, in] and B [out, r] by short name and suffix; may be empty.
        scale: alpha / r.
        dropout: probability of dropping an input of the adapters; 0 outside training.
        key: needed with dropout. Projections with the same input share one mask, which halves the
            random numbers to draw; each adapter by itself sees what PEFT's does.
    """
    dropped: dict[int, jax.Array] = {}

    def adapter_input(x_ND: jax.Array) -> jax.Array:
        if not dropout or key is None:
            return x_ND
        if id(x_ND) not in dropped:
            keep = jax.random.bernoulli(
                jax.random.fold_in(key, len(dropped)), 1.0 - dropout, x_ND.shape
            )
            dropped[id(x_ND)] = jnp.where(keep, x_ND / (1.0 - dropout), 0)
        return dropped[id(x_ND)]

    def linear(name: str, x_ND: jax.Array) -> jax.Array:
        y = jnp.einsum("nd,fd->nf", x_ND, weights[name])
        if name + LORA_A in adapters:
            low = jnp.einsum("nd,rd->nr", adapter_input(x_ND), adapters[name + LORA_A])
            y = y + jnp.einsum("nr,fr->nf", low * scale, adapters[name + LORA_B])
        return y

    return linear
