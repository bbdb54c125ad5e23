"""Gemma 3's text decoder: packed sequences for training, a key-value cache for generation.

Google, "Gemma 3 Technical Report" (2025); checked against transformers' Gemma3ForCausalLM.
Shape suffixes as in `engines/jax/layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tunesmith.engines.jax.attention import attention, causal_attention, packed_masks
from tunesmith.engines.jax.layers import decoder_layer, rms_norm, rope_angles
from tunesmith.engines.jax.lora import make_linear
from tunesmith.engines.jax.params import STACK, Params
from tunesmith.models.catalog import ModelConfig


@dataclass(frozen=True)
class Adapters:
    """How the adapters in a parameter tree apply.

    Attributes:
        scale: alpha / r.
        dropout: 0 outside training.
    """

    scale: float = 0.0
    dropout: float = 0.0


class Cache(NamedTuple):
    """Keys and values of past tokens.

    Attributes:
        k, v: [L, B, S, K, C].
        positions: int32 [B, S]; of the token in each slot, -1 in empty ones.
    """

    k: jax.Array
    v: jax.Array
    positions: jax.Array


def _is_full(config: ModelConfig) -> jax.Array:
    return jnp.asarray(np.array([kind == "full" for kind in config.layer_types]))


def _embed(config: ModelConfig, params: Params, tokens_N: jax.Array) -> jax.Array:
    x_ND = params["embed"][tokens_N]
    # The scale is rounded to the type of the activations, as in the original implementation.
    return x_ND * jnp.asarray(config.hidden_size**0.5, x_ND.dtype)


def _rope_tables(config: ModelConfig, positions_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [2, N, C/2]: of sliding layers, then of full ones."""
    local = rope_angles(positions_N, config.head_dim, config.rope_theta_local, 1.0)
    global_ = rope_angles(
        positions_N, config.head_dim, config.rope_theta_global, config.rope_scale_global
    )
    angles = jnp.stack([local, global_])
    return jnp.cos(angles), jnp.sin(angles)


def _split_layers(params: Params) -> dict[str, jax.Array]:
    return {n.removeprefix(STACK): p for n, p in params.items() if n.startswith(STACK)}


def hidden_states(
    config: ModelConfig,
    params: Params,
    tokens_BT: jax.Array,
    segment_ids_BT: jax.Array,
    positions_BT: jax.Array,
    adapters: Adapters | None = None,
    *,
    key: jax.Array | None = None,
    remat: bool = False,
) -> jax.Array:
    """Final hidden states [N, D], normed, ready for the head.

    Args:
        config: the model's shape.
        params: base weights and adapters in one tree, in the compute dtype.
        tokens_BT, segment_ids_BT, positions_BT: a packed batch (`data.types.Batch`).
        adapters: set when the tree holds any.
        key: for the adapters' dropout.
        remat: recompute each layer in the backward pass instead of keeping its activations.
    """
    adapters = adapters or Adapters()
    b, t = tokens_BT.shape
    masks = packed_masks(segment_ids_BT, positions_BT, config.sliding_window)
    cos, sin = _rope_tables(config, positions_BT.reshape(-1))
    score_scale = config.query_pre_attn_scalar**-0.5

    def layer(x_ND: jax.Array, xs: tuple) -> tuple[jax.Array, None]:
        weights, full, index = xs
        which = full.astype(jnp.int32)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            q, k, v = (a.reshape(b, t, *a.shape[1:]) for a in (q, k, v))
            return causal_attention(q, k, v, masks[which], score_scale).reshape(b * t, -1)

        layer_key = None if key is None else jax.random.fold_in(key, index)
        linear = make_linear(weights, weights, adapters.scale, adapters.dropout, layer_key)
        return decoder_layer(config, x_ND, weights, linear, attend, cos[which], sin[which]), None

    x_ND = _embed(config, params, tokens_BT.reshape(-1))
    xs = (_split_layers(params), _is_full(config), jnp.arange(config.num_layers))
    x_ND, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x_ND, xs)
    return rms_norm(x_ND, params["final_norm"], config.rms_norm_eps)


def empty_cache(config: ModelConfig, batch: int, slots: int, dtype: jnp.dtype) -> Cache:
    """A cache with room for `slots` tokens per sequence."""
    shape = (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.full((batch, slots), -1))


def extend(
    config: ModelConfig,
    params: Params,
    cache: Cache,
    tokens_BT: jax.Array,
    positions_BT: jax.Array,
    slot: jax.Array | int,
    adapters: Adapters | None = None,
) -> tuple[jax.Array, Cache]:
    """Run T more tokens through the model, keeping their keys and values.

    Args:
        config: the model's shape.
        params: base weights and adapters in one tree.
        cache: what came before.
        tokens_BT: int32; all sequences advance together, shorter ones padded on the left.
        positions_BT: int32; -1 marks padding, which is never attended to.
        slot: first cache slot to write, the same for all sequences.
        adapters: set when the tree holds any.

    Returns:
        Final hidden states [B, T, D] and the new cache.
    """
    adapters = adapters or Adapters()
    b, t = tokens_BT.shape
    key_positions = jax.lax.dynamic_update_slice(cache.positions, positions_BT, (0, slot))
    distance = positions_BT[:, :, None] - key_positions[:, None, :]
    full = (distance >= 0) & (key_positions >= 0)[:, None, :]
    masks = jnp.stack([full & (distance < config.sliding_window), full])
    cos, sin = _rope_tables(config, positions_BT.reshape(-1))
    score_scale = config.query_pre_attn_scalar**-0.5

    def layer(carry: tuple, xs: tuple) -> tuple[tuple, None]:
        x_ND, keys, values = carry
        weights, full, index = xs
        which = full.astype(jnp.int32)
        store = {}

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            q, k, v = (a.reshape(b, t, *a.shape[1:]) for a in (q, k, v))
            at = (index, 0, slot, 0, 0)
            store["k"] = jax.lax.dynamic_update_slice(keys, k[None].astype(keys.dtype), at)
            store["v"] = jax.lax.dynamic_update_slice(values, v[None].astype(values.dtype), at)
            out = attention(q, store["k"][index], store["v"][index], masks[which], score_scale)
            return out.reshape(b * t, -1)

        linear = make_linear(weights, weights, adapters.scale)
        x_ND = decoder_layer(config, x_ND, weights, linear, attend, cos[which], sin[which])
        return (x_ND, store["k"], store["v"]), None

    x_ND = _embed(config, params, tokens_BT.reshape(-1))
    xs = (_split_layers(params), _is_full(config), jnp.arange(config.num_layers))
    (x_ND, keys, values), _ = jax.lax.scan(layer, (x_ND, cache.k, cache.v), xs)
    x_ND = rms_norm(x_ND, params["final_norm"], config.rms_norm_eps)
    return x_ND.reshape(b, t, -1), Cache(keys, values, key_positions)


def logits(params: Params, h_ND: jax.Array) -> jax.Array:
    """Logits [N, V] in float32 of normed hidden states."""
    return jnp.einsum("nd,vd->nv", h_ND, params["embed"], preferred_element_type=jnp.float32)
