"""The forward pass on packed and padded batches. G numbers: known ways to go wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import Gradients, batch_of, largest_gap, open_tiny, words
from tunesmith.data.types import Batch
from tunesmith.engines.jax.attention import packed_masks
from tunesmith.engines.jax.families import gemma3
from tunesmith.engines.jax.session import JaxSession, open_session
from tunesmith.models import reference

Hidden = Callable[[Batch], np.ndarray]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma3(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def session(tiny: Path) -> JaxSession:
    return open_tiny(tiny)


@pytest.fixture(scope="module")
def gradients_of(session: JaxSession) -> Gradients:
    return Gradients(session)


@pytest.fixture(scope="module")
def hidden(session: JaxSession) -> Hidden:
    """Final hidden states [B, T, D] of a batch."""
    config, params = session.program.config, session.params()
    compiled = jax.jit(lambda *rows: gemma3.hidden_states(config, params, *rows))

    def run(batch: Batch) -> np.ndarray:
        h = compiled(batch.tokens, batch.segment_ids, batch.positions)
        return np.asarray(h).reshape(*batch.tokens.shape, -1)

    return run


def test_logits_equal_the_numpy_reference(tiny: Path, session: JaxSession) -> None:
    """G33; 40 tokens against a window of 8."""
    ids = words(np.random.default_rng(0), 40)
    expected = reference.load(tiny).forward(ids)
    np.testing.assert_allclose(session.logits(ids), expected, atol=2e-5)
    assert session.logits(ids[:5]).shape == (5, 512)
    np.testing.assert_allclose(session.logits(ids[:5]), expected[:5], atol=2e-5)


def test_packed_rows_never_see_each_other(hidden: Hidden) -> None:
    """G11: B behind A is B alone; editing A leaves B as it was, positions restart."""
    rng = np.random.default_rng(1)
    a, b = words(rng, 20), words(rng, 30)
    packed = hidden(batch_of([a, b], length=64))
    alone = hidden(batch_of([b], length=64))
    np.testing.assert_allclose(packed[0, 20:50], alone[0, :30], atol=1e-5)
    edited = hidden(batch_of([words(rng, 20), b], length=64))
    np.testing.assert_array_equal(edited[0, 20:50], packed[0, 20:50])
    assert np.abs(edited[0, 1:20] - packed[0, 1:20]).max() > 0.1


def test_the_same_row_twice_gives_the_same_states_twice(hidden: Hidden) -> None:
    """Twice the same segment: nothing but the positions could tell them apart."""
    row = words(np.random.default_rng(2), 30)
    both = hidden(batch_of([row, row], length=64))
    np.testing.assert_allclose(both[0, :30], both[0, 30:60], atol=1e-5)


def test_a_later_token_changes_nothing_before_it(hidden: Hidden) -> None:
    row = words(np.random.default_rng(3), 40)
    before = hidden(batch_of([row], length=64))
    changed = row.copy()
    changed[25] = 130 if row[25] != 130 else 131
    after = hidden(batch_of([changed], length=64))
    np.testing.assert_array_equal(before[0, :25], after[0, :25])
    assert np.abs(before[0, 25:40] - after[0, 25:40]).max() > 0.01


def test_masks_by_hand() -> None:
    """Two segments of 3 and 2 tokens, one of padding, window 2."""
    segments = jnp.array([[1, 1, 1, 2, 2, 0]])
    positions = jnp.array([[0, 1, 2, 0, 1, 0]])
    sliding, full = packed_masks(segments, positions, 2).astype(int)
    assert sliding[0].tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    assert full[0].tolist()[2] == [1, 1, 1, 0, 0, 0]
    assert full[0].tolist()[:2] == sliding[0].tolist()[:2]


def two_rows(seed: int, length: int = 32) -> Batch:
    """43 targets."""
    rng = np.random.default_rng(seed)
    return batch_of([words(rng, 25)], [words(rng, 12), words(rng, 9)], length=length)


def test_padding_changes_neither_loss_nor_gradients(gradients_of: Gradients) -> None:
    """G10: the same rows padded to 32 and to 256."""
    short, short_gradients = gradients_of(two_rows(4))
    long, long_gradients = gradients_of(two_rows(4, length=256))
    assert short == pytest.approx(long, rel=1e-6)
    assert largest_gap(short_gradients, long_gradients) / 43 < 1e-6
    assert min(np.abs(gradient).max() for gradient in short_gradients.values()) / 43 > 1e-3


def test_rows_within_and_beyond_the_window_stay_finite(tmp_path: Path) -> None:
    """G13: 20 and 700 tokens, window 512; and a row of nothing but padding."""
    session = open_tiny(write_tiny_gemma3(tmp_path, sliding_window=512, layers=6))
    rng = np.random.default_rng(5)
    batch = batch_of([words(rng, 20)], [words(rng, 700)], [], length=704)
    loss, gradients = Gradients(session)(batch)
    assert 5.0 < loss / 718 < 8.0  # near ln 512 = 6.2
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert all(gradient.any() for gradient in gradients.values())
    assert np.isfinite(session.logits(words(rng, 700))).all()


def test_recomputed_layers_give_the_same_gradients(tiny: Path, gradients_of: Gradients) -> None:
    loss, gradients = gradients_of(two_rows(6))
    again = Gradients(open_tiny(tiny, train={"remat": "layer"}))(two_rows(6))
    assert loss == pytest.approx(again[0], rel=1e-6)
    assert largest_gap(gradients, again[1]) / 43 < 1e-6


def test_bfloat16_compute_is_near_float32(tiny: Path, gradients_of: Gradients) -> None:
    """Within 1% of the loss; master weights and their gradients stay float32."""
    loss, gradients = gradients_of(two_rows(7))
    low = open_tiny(tiny, train={"compute_dtype": "bfloat16"})
    assert {array.dtype.name for array in low.trainable.values()} == {"float32"}
    low_loss, low_gradients = Gradients(low)(two_rows(7))
    assert low_loss == pytest.approx(loss, rel=0.01)
    assert low_loss != loss  # it did compute in bfloat16
    for name, gradient in gradients.items():
        low_gradient = low_gradients[name]
        assert low_gradient.dtype == np.float32
        cosine = (gradient * low_gradient).sum()
        cosine /= np.linalg.norm(gradient) * np.linalg.norm(low_gradient)
        assert cosine > 0.99, name


def test_frozen_weights_are_kept_in_the_compute_type(tiny: Path) -> None:
    """Half the memory for what never changes; norms stay float32."""
    session = open_session(tiny, compute_dtype="bfloat16")
    assert session.trainable == {}
    types = {name: array.dtype.name for name, array in session.frozen.items()}
    assert types["embed"] == types["layers.attn.q"] == "bfloat16"
    assert types["final_norm"] == types["layers.attn.q_norm"] == "float32"
