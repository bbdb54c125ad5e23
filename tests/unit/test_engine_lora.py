"""One adapted matrix product, with dropout and without."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunesmith.engines.jax.lora import make_linear

RNG = np.random.default_rng(0)
WEIGHTS = {
    name: jnp.asarray(RNG.standard_normal(shape, dtype=np.float32))
    for name, shape in {
        "attn.q": (5, 8),
        "attn.q.lora_a": (3, 8),
        "attn.q.lora_b": (5, 3),
        "mlp.up": (5, 8),
    }.items()
}
X = jnp.asarray(RNG.standard_normal((400, 8), dtype=np.float32))


def base(name: str, x: jax.Array) -> jax.Array:
    return x @ WEIGHTS[name].T


def update(name: str, x: jax.Array, scale: float) -> jax.Array:
    return scale * (x @ WEIGHTS[f"{name}.lora_a"].T @ WEIGHTS[f"{name}.lora_b"].T)


def test_the_update_is_added_to_the_frozen_product() -> None:
    linear = make_linear(WEIGHTS, WEIGHTS, 1.5, dropout=0.4)  # no key: not in training
    expected = base("attn.q", X) + update("attn.q", X, 1.5)
    np.testing.assert_allclose(linear("attn.q", X), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(linear("mlp.up", X), base("mlp.up", X))


# An adapter that gives its own input back, beside a product that gives nothing.
MIRRORS = {f"{name}.lora_{side}": jnp.eye(8) for name in ("attn.q", "attn.k") for side in "ab"}
MIRRORS |= {name: jnp.zeros((8, 8)) for name in ("attn.q", "attn.k")}


def test_dropout_drops_its_share_and_scales_up_the_rest() -> None:
    """So that the mean over many draws is the input itself."""
    seen = np.asarray(make_linear(MIRRORS, MIRRORS, 1.0, 0.25, jax.random.key(1))("attn.q", X))
    dropped = seen == 0
    assert dropped.mean() == pytest.approx(0.25, abs=0.03)  # 3,200 draws: four deviations
    np.testing.assert_allclose(seen[~dropped], np.asarray(X / 0.75)[~dropped], rtol=1e-6)
    assert 0.1 < dropped.mean(axis=0).min() < dropped.mean(axis=0).max() < 0.4


def test_dropout_spares_the_frozen_product() -> None:
    frozen = {"attn.q": WEIGHTS["attn.q"]}
    linear = make_linear(frozen, {}, 1.5, 0.9, jax.random.key(0))
    np.testing.assert_array_equal(linear("attn.q", X), base("attn.q", X))


def test_projections_of_one_input_share_its_mask_and_others_do_not() -> None:
    linear = make_linear(MIRRORS, MIRRORS, 1.0, 0.5, jax.random.key(0))
    other = X + 0.0
    q, k, later = linear("attn.q", X), linear("attn.k", X), linear("attn.k", other)
    np.testing.assert_array_equal(q, k)
    assert (np.asarray(q == 0) != np.asarray(later == 0)).mean() == pytest.approx(0.5, abs=0.05)
