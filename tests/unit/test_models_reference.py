"""The numpy Gemma 3 by itself; tests/parity compares it with transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tunesmith.models.reference import Reference, load, rms_norm, rope


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return load(write_tiny_gemma3(tmp_path_factory.mktemp("tiny"), sliding_window=8))


def some_ids(length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(109, 512, length)


def test_positions_select_rows_of_the_logits(tiny: Reference) -> None:
    ids = some_ids(30)
    whole = tiny.forward(ids)
    assert whole.shape == (30, 512)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(tiny.forward(ids, positions=[4, 29]), whole[[4, 29]], atol=1e-5)


def test_cache_gives_the_text_that_whole_passes_give(tiny: Reference) -> None:
    """Beyond the sliding window, from 1 and from more tokens."""
    for start in (1, 20):
        ids = some_ids(start).tolist()
        expected = list(ids)
        for _ in range(25):
            expected.append(int(tiny.forward(expected)[-1].argmax()))
        assert tiny.greedy(ids, 25, ()) == expected[start:]


def test_greedy_stops_before_a_stop_id(tiny: Reference) -> None:
    ids = some_ids(5)
    free = tiny.greedy(ids, 10, ())
    assert len(free) == 10
    stop = free[4]
    assert tiny.greedy(ids, 10, {stop}) == free[: free.index(stop)]
    assert tiny.greedy(ids, 0, ()) == []


def test_later_tokens_never_change_earlier_logits(tiny: Reference) -> None:
    ids = some_ids(40)
    changed = ids.copy()
    changed[20:] = 110
    np.testing.assert_array_equal(tiny.forward(ids)[:20], tiny.forward(changed)[:20])


def test_sliding_layers_see_the_window_and_no_further(tmp_path: Path) -> None:
    """With sliding layers alone (4 of them), token 0 reaches 4 * (8 - 1) positions and no more."""
    model = load(write_tiny_gemma3(tmp_path, layers=4, sliding_window=8))
    ids = some_ids(40)
    changed = np.concatenate([[110], ids[1:]])
    differs = np.abs(model.forward(ids) - model.forward(changed)).max(axis=1) > 0
    assert differs.nonzero()[0].max() == 28


@pytest.mark.parametrize("length", [20, 700])
def test_short_and_long_inputs_are_finite(length: int, tmp_path: Path) -> None:
    """G13: a window of 512 with fewer and with more tokens."""
    model = load(write_tiny_gemma3(tmp_path, sliding_window=512))
    assert np.isfinite(model.forward(some_ids(length))).all()


def test_rms_norm_multiplies_by_one_plus_w() -> None:
    x = np.float32([[3.0, 4.0]])
    np.testing.assert_allclose(rms_norm(x, np.float32([0, 1]), 0.0), [[0.8485281, 2.2627418]])


def test_rope_turns_by_position_over_scale() -> None:
    x = np.float32([[[1.0, 0.0]]])  # one pair, so the angle is the position itself
    turned = rope(x, np.array([3]), 1e6, 1.0)
    np.testing.assert_allclose(turned[0, 0], [np.cos(3), np.sin(3)], rtol=1e-6)
    np.testing.assert_allclose(rope(x, np.array([24]), 1e6, 8.0), turned, rtol=1e-6)
