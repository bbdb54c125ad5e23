"""Cross-entropy in chunks against the full one."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunesmith.engines.jax import head
from tunesmith.engines.jax.head import chunk_size, cross_entropy_sum

VOCAB, HIDDEN, POSITIONS = 97, 16, 50


def full(h: jax.Array, embed: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """The textbook's: all logits at once."""
    logs = jax.nn.log_softmax(h @ embed.T)
    return -jnp.sum(jnp.where(mask, logs[jnp.arange(len(targets)), targets], 0.0))


def problem(share: float, seed: int = 0) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    h = rng.standard_normal((POSITIONS, HIDDEN), dtype=np.float32)
    embed = rng.standard_normal((VOCAB, HIDDEN), dtype=np.float32)
    targets = rng.integers(0, VOCAB, POSITIONS, dtype=np.int32)
    return tuple(map(jnp.asarray, (h, embed, targets, rng.random(POSITIONS) < share)))


@pytest.fixture(params=[8, 24, POSITIONS])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Targets per chunk: several chunks with a rest, and one that holds all."""
    monkeypatch.setattr(head, "CHUNK_LOGITS", request.param * VOCAB)
    return request.param


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_value_and_gradients_equal_the_full_ones(share: float, chunks: int) -> None:
    """G34; with no targets at all, some, and all."""
    assert chunk_size(VOCAB, POSITIONS) == chunks // 8 * 8
    h, embed, targets, mask = problem(share)
    ours = partial(cross_entropy_sum, targets_N=targets, mask_N=mask, embed_trains=True)
    loss, (dh, de) = jax.value_and_grad(ours, argnums=(0, 1))(h, embed)
    expected, (dh_full, de_full) = jax.value_and_grad(full, argnums=(0, 1))(h, embed, targets, mask)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(dh, dh_full, atol=1e-5)
    np.testing.assert_allclose(de, de_full, atol=1e-5)
    assert bool(jnp.any(dh)) == bool(jnp.any(de)) == bool(share)
    np.testing.assert_array_equal(np.any(np.asarray(dh), axis=1), np.asarray(mask))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_every_target_counts_at_the_edges_of_chunks(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK_LOGITS", 8 * VOCAB)
    h, embed, targets, _ = problem(1.0)
    mask = np.zeros(POSITIONS, bool)
    mask[np.random.default_rng(count).permutation(POSITIONS)[:count]] = True
    arrays = (h, embed, targets, jnp.asarray(mask))
    loss = partial(cross_entropy_sum, embed_trains=True)
    expected, dh_full = jax.value_and_grad(full)(*arrays)
    np.testing.assert_allclose(loss(*arrays), expected, rtol=1e-6)
    value, dh = jax.value_and_grad(loss)(*arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(dh, dh_full, atol=1e-5)


def test_a_frozen_embedding_gets_no_gradient(chunks: int) -> None:
    """The value and the hidden states' gradient stay; the costly product is left out."""
    h, embed, targets, mask = problem(0.5)
    frozen = partial(cross_entropy_sum, targets_N=targets, mask_N=mask, embed_trains=False)
    loss, (dh, de) = jax.value_and_grad(frozen, argnums=(0, 1))(h, embed)
    expected, dh_full = jax.value_and_grad(full)(h, embed, targets, mask)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(dh, dh_full, atol=1e-5)
    assert not np.any(de)


def test_the_gradient_scales_with_what_follows(chunks: int) -> None:
    h, embed, targets, mask = problem(0.5)
    scaled = jax.grad(lambda h: 3.0 * cross_entropy_sum(h, embed, targets, mask, True))(h)
    plain = jax.grad(lambda h: cross_entropy_sum(h, embed, targets, mask, True))(h)
    np.testing.assert_allclose(scaled, 3.0 * plain, rtol=1e-6)


def test_bfloat16_products_sum_in_float32() -> None:
    """The loss of 50 positions within 1% of float32's, as rounded inputs allow; gradients too."""
    h, embed, targets, mask = problem(1.0)
    low = [a.astype(jnp.bfloat16) for a in (h, embed)]
    loss, (dh, de) = jax.value_and_grad(cross_entropy_sum, argnums=(0, 1))(
        *low, targets, mask, True
    )
    expected, (dh_full, de_full) = jax.value_and_grad(full, argnums=(0, 1))(h, embed, targets, mask)
    assert loss.dtype == jnp.float32
    assert dh.dtype == de.dtype == jnp.bfloat16
    np.testing.assert_allclose(loss, expected, rtol=1e-2)
    for ours, theirs in ((dh, dh_full), (de, de_full)):
        gap = np.abs(np.asarray(ours, np.float32) - np.asarray(theirs)).max()
        assert gap < 0.03 * np.abs(np.asarray(theirs)).max()


def test_large_logits_stay_finite() -> None:
    h, embed, targets, mask = problem(1.0)
    loss, dh = jax.value_and_grad(cross_entropy_sum)(1e4 * h, embed, targets, mask, True)
    assert np.isfinite(loss)
    assert np.isfinite(dh).all()


def test_the_vocabulary_sets_the_size_of_a_chunk() -> None:
    """256 MiB of float32 logits at most: 256 positions of Gemma's vocabulary."""
    assert chunk_size(262_144, 8192) == 256
    assert chunk_size(262_144, 100) == 96
    assert chunk_size(512, 5) == 5


def test_no_array_holds_the_logits_of_all_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """G34: the compiled program of value and gradients has no [N, V] in it."""
    monkeypatch.setattr(head, "CHUNK_LOGITS", 8 * VOCAB)
    arrays = problem(1.0)
    shape = f"f32[{POSITIONS},{VOCAB}]"
    for function, is_full in ((full, True), (partial(cross_entropy_sum, embed_trains=True), False)):
        program = jax.jit(jax.value_and_grad(function, argnums=(0, 1))).lower(*arrays)
        assert (shape in program.compile().as_text()) == is_full
