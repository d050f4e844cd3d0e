"""Reference speed of the machine, with which measured speeds are compared."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp


def matrix_product_rate() -> float:
    """Returns the rate of a 2048 x 2048 matrix product in floating-point operations per second, the best of ten."""
    matrix = jnp.ones((2048, 2048))
    product = jax.jit(jnp.dot)
    product(matrix, matrix).block_until_ready()
    times = []
    for _ in range(10):
        started = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(times)
