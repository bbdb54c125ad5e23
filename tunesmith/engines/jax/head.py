"""Cross-entropy over a large vocabulary whose full logits never exist.

Gemma's head is the largest matrix product of a small model: 262,144 entries. Two savings:
only positions with a target go through it, and they go in chunks whose logits are turned into the
loss and its gradients at once, then dropped (as in Liger Kernel's fused linear cross-entropy,
Hsu et al., 2024). The number of chunks follows the number of targets, so masked positions cost
nothing.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

CHUNK_LOGITS = 64 * 2**20
"""Logits of one chunk, at most: 256 MiB in float32."""


def chunk_size(vocab_size: int, positions: int) -> int:
    """Targets per chunk: as many as `CHUNK_LOGITS` allows, a multiple of 8 where that is more."""
    most = max(1, CHUNK_LOGITS // vocab_size)
    size = min(most, positions)
    return size if size < 8 else size // 8 * 8


def _chunks(mask_N: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Indices of the positions with a loss, padded with N to whole chunks; their count."""
    n = mask_N.shape[0]
    (index,) = jnp.nonzero(mask_N, size=-(-n // size) * size, fill_value=n)
    return index, jnp.sum(mask_N, dtype=jnp.int32)


def _take(array: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take(array, index, axis=0, mode="fill", fill_value=0)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy_sum(
    h_ND: jax.Array,
    embed_VD: jax.Array,
    targets_N: jax.Array,
    mask_N: jax.Array,
    embed_trains: bool,
) -> jax.Array:
    """Sum of -log p(target) in nats over the positions where `mask_N` is true, as float32.

    Args:
        h_ND: final hidden states, in the compute dtype.
        embed_VD: tied embedding, in the compute dtype.
        targets_N: int32 ids to predict.
        mask_N: bool, where there is a target.
        embed_trains: whether the embedding's gradient is wanted; without it a third of the work
            falls away and the gradient returned for it is zero.
    """
    size = chunk_size(embed_VD.shape[0], h_ND.shape[0])
    index, count = _chunks(mask_N, size)

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        at = jax.lax.dynamic_slice(index, (i * size,), (size,))
        return total + _chunk_loss(_take(h_ND, at), embed_VD, targets_N, at)[0]

    return jax.lax.fori_loop(0, -(-count // size), add, jnp.float32(0.0))


def _chunk_loss(
    h_ND: jax.Array, embed_VD: jax.Array, targets_N: jax.Array, at: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Loss of one chunk, its logits and log-sum-exp, and the target rows of the embedding."""
    valid = at < targets_N.shape[0]
    target = _take(targets_N, at)
    logits = jnp.einsum("nd,vd->nv", h_ND, embed_VD, preferred_element_type=jnp.float32)
    lse = jax.nn.logsumexp(logits, axis=-1)
    # The target's logit as a dot product: a gather from [N, V] logits is slow on CPUs and made
    # libtpu 0.0.50 fail.
    rows = embed_VD[target]
    chosen = jnp.sum(h_ND.astype(jnp.float32) * rows.astype(jnp.float32), axis=-1)
    loss = jnp.sum(jnp.where(valid, lse - chosen, 0.0))
    return loss, logits, lse, rows, valid


def _forward(
    h_ND: jax.Array,
    embed_VD: jax.Array,
    targets_N: jax.Array,
    mask_N: jax.Array,
    embed_trains: bool,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array | None, jax.Array]]:
    """The loss together with its gradients, while each chunk's logits are at hand."""
    size = chunk_size(embed_VD.shape[0], h_ND.shape[0])
    index, count = _chunks(mask_N, size)
    dtype = h_ND.dtype

    def add(i: jax.Array, carry: tuple) -> tuple:
        total, dh, de = carry
        at = jax.lax.dynamic_slice(index, (i * size,), (size,))
        h = _take(h_ND, at)
        loss, logits, lse, rows, valid = _chunk_loss(h, embed_VD, targets_N, at)
        p = jnp.where(valid[:, None], jnp.exp(logits - lse[:, None]), 0.0).astype(dtype)
        back = jnp.einsum("nv,vd->nd", p, embed_VD, preferred_element_type=jnp.float32)
        dh = dh.at[at].set(back - rows.astype(jnp.float32), mode="drop")
        if embed_trains:
            de = de + jnp.einsum("nv,nd->vd", p, h, preferred_element_type=jnp.float32)
            ours = jnp.where(valid[:, None], h.astype(jnp.float32), 0.0)
            de = de.at[_take(targets_N, at)].add(-ours)
        return total + loss, dh, de

    de = jnp.zeros(embed_VD.shape, jnp.float32) if embed_trains else jnp.zeros((), jnp.float32)
    start = (jnp.float32(0.0), jnp.zeros(h_ND.shape, jnp.float32), de)
    total, dh, de = jax.lax.fori_loop(0, -(-count // size), add, start)
    return total, (dh.astype(dtype), de if embed_trains else None, embed_VD)


def _backward(embed_trains: bool, saved: tuple, cotangent: jax.Array) -> tuple:
    dh, de, embed_VD = saved
    de = jnp.zeros_like(embed_VD) if de is None else (de * cotangent).astype(embed_VD.dtype)
    return (dh * cotangent).astype(dh.dtype), de, None, None


cross_entropy_sum.defvjp(_forward, _backward)
