"""The linear layer as a CPU computes it fastest; it equals the library's own (tested).

The textbook version is nnx.Linear: in its place it changes the last digits of results only. benchmarks/RESULTS.md has
what it gains.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx


class Linear(nnx.Linear):
    """Flax's linear layer, which here sees [..., D] as a matrix.

    The gradient of a kernel is then one product that sums over one axis. Over two, rows and positions, XLA transposes
    the activations first: on a CPU a layer of width 256 takes 1.21 times as long, one of width 128 1.33 times
    (forward and backward).
    """

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """[..., inputs] -> [..., outputs]."""
        matrix = inputs.reshape(-1, inputs.shape[-1])
        return super().__call__(matrix, out_sharding).reshape(*inputs.shape[:-1], -1)
