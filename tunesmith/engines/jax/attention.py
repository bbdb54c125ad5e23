"""Attention of packed sequences and of cached decoding, by explicit masks.

Shape suffixes as in `layers.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Queries per block of `causal_attention`: enough for a large product, few enough to skip much.
_BLOCK = 128
_MOST_BLOCKS = 8

# Large, but finite: a row without any allowed key then gives a mean of values, not NaN.
MASKED = -1e30


def packed_masks(segment_ids_BT: jax.Array, positions_BT: jax.Array, window: int) -> jax.Array:
    """Masks [2, B, T, S] of packed sequences: sliding-window layers first, then full ones.

    A token sees its own segment, itself and what precedes it; in sliding layers only the last
    `window` positions, itself included.
    """
    same = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    distance = positions_BT[:, :, None] - positions_BT[:, None, :]
    full = same & (distance >= 0)
    return jnp.stack([full & (distance < window), full])


def causal_attention(
    q_BTHC: jax.Array, k_BTKC: jax.Array, v_BTKC: jax.Array, mask_BTS: jax.Array, scale: float
) -> jax.Array:
    """`attention` for sequences in causal order, in blocks of queries.

    A block leaves out the keys that lie behind it in the row, nearly half of all. Scores, the
    largest activation, are made again in the backward pass, so memory stays linear in T. On a CPU
    (2 x 544 tokens, 18 layers of the 270M) value and gradient took 1.5 s of processor time, and
    2.9 s as one block.
    """
    t = q_BTHC.shape[1]
    size = max(_BLOCK, -(-t // _MOST_BLOCKS))
    core = jax.checkpoint(attention, static_argnums=4)
    blocks = [
        core(
            q_BTHC[:, begin : begin + size],
            k_BTKC[:, : begin + size],
            v_BTKC[:, : begin + size],
            mask_BTS[:, begin : begin + size, : begin + size],
            scale,
        )
        for begin in range(0, t, size)
    ]
    return jnp.concatenate(blocks, axis=1)


def attention(
    q_BTHC: jax.Array, k_BSKC: jax.Array, v_BSKC: jax.Array, mask_BTS: jax.Array, scale: float
) -> jax.Array:
    """Grouped-query attention [B, T, H, C]; scores and softmax in float32."""
    b, t, h, c = q_BTHC.shape
    s, k = k_BSKC.shape[1:3]
    g = h // k
    # Queries of one group share their keys: folding G into the rows makes one large product.
    q_BKRC = q_BTHC.reshape(b, t, k, g, c).transpose(0, 2, 3, 1, 4).reshape(b, k, g * t, c)
    scores = jnp.einsum(
        "bkrc,bskc->bkrs", q_BKRC * scale, k_BSKC, preferred_element_type=jnp.float32
    ).reshape(b, k, g, t, s)
    scores = jnp.where(mask_BTS[:, None, None], scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BSKC.dtype).reshape(b, k, g * t, s)
    out = jnp.einsum("bkrs,bskc->bkrc", weights, v_BSKC)
    return out.reshape(b, k, g, t, c).transpose(0, 3, 1, 2, 4).reshape(b, t, h, c)
