"""AdamW and clipping, by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tunesmith.engines.jax.optim import apply_updates, clip_factor, global_norm, make_optimizer
from tunesmith.engines.jax.params import Declared
from tunesmith.recipe.schema import Optimizer, TrainSection

DECLARED = {
    "matrix": Declared((2, 2), ("a", "b"), decays=True),
    "norm": Declared((2,), ("a",), decays=False),
}


def test_two_steps_by_hand() -> None:
    adam = Optimizer(beta1=0.9, beta2=0.99, eps=0.01, weight_decay=0.5)
    optimizer = make_optimizer(TrainSection(learning_rate=1.0, optimizer=adam), DECLARED)
    params = {"matrix": jnp.array([[1.0, -2.0], [0.0, 4.0]]), "norm": jnp.array([3.0, -1.0])}
    gradients = {"matrix": jnp.array([[0.3, 0.0], [-2.0, 0.01]]), "norm": jnp.array([0.1, 0.2])}
    state = optimizer.init(params)
    expected = {name: np.array(p, np.float64) for name, p in params.items()}
    for step in (1, 2):
        updates, state = optimizer.update(gradients, state, params)
        params = apply_updates(params, updates, jnp.float32(0.1))
        for name, g in gradients.items():
            # With a constant gradient both bias-corrected moments are the gradient itself.
            g = np.array(g, np.float64)
            decay = 0.5 * expected[name] if name == "matrix" else 0.0
            expected[name] -= 0.1 * (g / (np.abs(g) + 0.01) + decay)
            np.testing.assert_allclose(params[name], expected[name], rtol=1e-5, err_msg=f"{step}")


@pytest.mark.parametrize(
    ("norm", "most", "factor"), [(2.0, 1.0, 0.5), (0.5, 1.0, 1.0), (10.0, 0.3, 0.03)]
)
def test_clipping_scales_down_and_never_up(norm: float, most: float, factor: float) -> None:
    assert float(clip_factor(jnp.float32(norm), most)) == pytest.approx(factor, rel=1e-5)


def test_without_a_limit_nothing_is_clipped() -> None:
    assert clip_factor(jnp.float32(1e9), None) == 1.0


def test_the_norm_is_over_all_gradients() -> None:
    assert float(global_norm({"a": jnp.array([[3.0]]), "b": jnp.array([0.0, 4.0])})) == 5.0
