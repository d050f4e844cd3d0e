"""What the kernels have in common: matrix products inside them, and their call on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh


def product(one: jax.Array, other: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """The matrix product that sums over these axes, float32."""
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(one, other, axes, preferred_element_type=jnp.float32)


def on_each_device(function: Callable[..., Any], mesh: Mesh, inputs: Any, outputs: Any) -> Callable[..., Any]:
    """The function on the part of its operands that each device has; XLA cannot share out a kernel by itself.

    Args:
      inputs, outputs: PartitionSpecs of the operands and of the results.
    """
    return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
