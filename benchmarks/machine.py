"""What the machine can do, to compare with."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp


def matrix_product_rate() -> float:
    """Floating-point operations a second of a product of two matrices of 2048 x 2048: what the machine can do."""
    matrix = jnp.ones((2048, 2048))
    product = jax.jit(jnp.dot)
    product(matrix, matrix).block_until_ready()
    times = []
    for _ in range(10):
        started = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(times)
