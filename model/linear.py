"""A linear layer that trains faster on a CPU than `nnx.Linear` and computes the same function (tested).

`nnx.Linear` is the textbook version: using it instead changes results only in the last digits. The gain in speed is
reported in docs/results/performance.md.
"""

from __future__ import annotations

from typing import Any

from flax import nnx
from jaxtyping import Array, Float


class Linear(nnx.Linear):
    """Flax's linear layer, applied to its input [..., D] as a matrix.

    The gradient of the kernel is then a single matrix product that sums over one axis. If it has to sum over two (rows
    and positions), XLA first transposes the activations, which is slower on a CPU (docs/results/performance.md).
    """

    def __call__(self, inputs: Float[Array, "*B I"], out_sharding: Any = None) -> Float[Array, "*B O"]:
        """Applies the layer: [..., inputs] -> [..., outputs]."""
        matrix = inputs.reshape(-1, inputs.shape[-1])
        return super().__call__(matrix, out_sharding).reshape(*inputs.shape[:-1], -1)
