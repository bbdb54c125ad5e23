"""Where LoRA starts: the same numbers for every engine, so that their losses can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

# Order in which the projections draw; it is part of what a seed means.
_ORDER = ("k_proj", "o_proj", "q_proj", "v_proj", "down_proj", "gate_proj", "up_proj")


def draw_a(
    shapes: Mapping[str, Iterable[tuple[int, int]]], seed: int
) -> dict[str, list[np.ndarray]]:
    """Fresh A matrices in float32, uniform as in PEFT (Kaiming with a = √5); B is zero.

    Args:
        shapes: by projection (`q_proj` …), the shape (r, in_features) in each layer that has it.
        seed: `train.seed`.

    Returns:
        By projection, an array for each shape.
    """
    drawn = {}
    for index, target in enumerate(name for name in _ORDER if name in shapes):
        # Twice the index: B once had a number of its own, and seeds must keep their meaning.
        generator = np.random.default_rng([seed, 2 * index])
        drawn[target] = []
        for r, into in shapes[target]:
            bound = 1.0 / np.sqrt(into)
            matrix = generator.uniform(-bound, bound, (r, into)).astype(np.float32)
            drawn[target].append(matrix)
    return drawn
