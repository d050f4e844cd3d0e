"""Functions that the Pallas kernels share: matrix products inside a kernel, and running a kernel on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh


def product(left: jax.Array, right: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """Returns the matrix product, float32, that sums over axis contracted[0] of left and contracted[1] of right."""
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def on_each_device(function: Callable[..., Any], mesh: Mesh, inputs: Any, outputs: Any) -> Callable[..., Any]:
    """Returns the function applied on every device to that device's shards: XLA cannot partition a kernel by itself.

    `inputs` and `outputs` are the PartitionSpecs of the operands and of the results.
    """
    return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
