"""Pieces of a Gemma decoder layer.

Activations are kept two-dimensional, [N, D] with N = B·T tokens: on CPUs XLA reaches its fast
matrix products only with a single contracted axis and no batch axis (an MLP's gradient took 0.76 s
with [B, T, D] operands and 0.09 s flattened, on a 2-core Xeon, jax 0.12).

Suffixes give shapes: B sequences, T query positions, S key positions, N = B·T, D hidden, F ffn,
H query heads, K key-value heads, G = H / K, C head size.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tunesmith.models.catalog import ModelConfig

Linear = Callable[[str, jax.Array], jax.Array]
"""`linear(name, x_ND)` multiplies by the layer's weight of that name, adapter included."""

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""`attend(q_NHC, k_NKC, v_NKC)` gives [N, H·C]."""


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in float32; Gemma 3 multiplies by 1 + w."""
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * inverse * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)


def rope_angles(positions: jax.Array, head_dim: int, theta: float, scale: float) -> jax.Array:
    """Angles [..., C/2] of rotary position embedding (Su et al., 2021) with linear scaling."""
    exponents = jnp.arange(head_dim // 2, dtype=jnp.float32) * (2.0 / head_dim)
    return positions[..., None].astype(jnp.float32) / (theta**exponents * scale)


def rotate(x_NHC: jax.Array, cos_NC: jax.Array, sin_NC: jax.Array) -> jax.Array:
    """Rotate the two halves of each head (Hugging Face's `rotate_half` layout), in float32."""
    first, second = jnp.split(x_NHC.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_NC[:, None, :], sin_NC[:, None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_NHC.dtype)


def decoder_layer(
    config: ModelConfig,
    x_ND: jax.Array,
    norms: dict[str, jax.Array],
    linear: Linear,
    attend: Attend,
    cos_NC: jax.Array,
    sin_NC: jax.Array,
) -> jax.Array:
    """One Gemma 3 layer: attention and gated MLP, each between two norms (sandwich norm)."""
    eps = config.rms_norm_eps
    n = x_ND.shape[0]
    h_ND = rms_norm(x_ND, norms["input_norm"], eps)
    q_NHC = linear("attn.q", h_ND).reshape(n, config.num_heads, config.head_dim)
    k_NKC = linear("attn.k", h_ND).reshape(n, config.num_kv_heads, config.head_dim)
    v_NKC = linear("attn.v", h_ND).reshape(n, config.num_kv_heads, config.head_dim)
    q_NHC = rotate(rms_norm(q_NHC, norms["attn.q_norm"], eps), cos_NC, sin_NC)
    k_NKC = rotate(rms_norm(k_NKC, norms["attn.k_norm"], eps), cos_NC, sin_NC)
    a_ND = linear("attn.o", attend(q_NHC, k_NKC, v_NKC))
    x_ND = x_ND + rms_norm(a_ND, norms["post_attn_norm"], eps)
    h_ND = rms_norm(x_ND, norms["pre_ffw_norm"], eps)
    gate_NF = jax.nn.gelu(linear("mlp.gate", h_ND), approximate=True)
    m_ND = linear("mlp.down", gate_NF * linear("mlp.up", h_ND))
    return x_ND + rms_norm(m_ND, norms["post_ffw_norm"], eps)
