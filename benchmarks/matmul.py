"""What this machine's matrix products reach through JAX: the ceiling over a training step.

    python -m benchmarks.matmul

Prints one JSON line: GFLOP/s by type and shape, the best of a few tries each. Where a processor has
no units for bfloat16, JAX emulates them, and float32 is the faster type.
"""

from __future__ import annotations

import json
import time

import jax
import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")
# [M, K] × [K, N]: a large square, the head of Gemma 3 270M, and one of its MLP products.
SHAPES = ((4096, 4096, 4096), (256, 640, 262_144), (2048, 640, 2048))
TRIES_SECONDS = 2.0
"""Tries of one product go on for so long; there is one at least."""


def gflops(dtype: str, m: int, k: int, n: int) -> float:
    """Best rate of one product, in 1e9 operations per second; a multiply-add counts as two."""
    left, right = jax.random.split(jax.random.key(0))
    a = jax.random.normal(left, (m, k), jnp.dtype(dtype))
    b = jax.random.normal(right, (k, n), jnp.dtype(dtype))
    product = jax.jit(jnp.matmul)
    product(a, b).block_until_ready()
    seconds: list[float] = []
    while sum(seconds) < TRIES_SECONDS:
        begun = time.perf_counter()
        product(a, b).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return 2 * m * k * n / min(seconds) / 1e9


def main() -> None:
    """Measure every type and shape."""
    rates = {
        dtype: {" × ".join(map(str, shape)): round(gflops(dtype, *shape), 1) for shape in SHAPES}
        for dtype in DTYPES
    }
    print(json.dumps(rates, ensure_ascii=False))


if __name__ == "__main__":
    main()
