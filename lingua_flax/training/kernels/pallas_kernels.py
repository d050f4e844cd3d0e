"""Functions that the Pallas kernels share: matrix products inside a kernel, and running a kernel on a mesh."""

import functools

import jax
import jax.numpy as jnp

# Applies a function on every device to that device's shards: XLA cannot partition a kernel by itself.
on_each_device = functools.partial(jax.shard_map, check_vma=False)


def product(left: jax.Array, right: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """Returns the matrix product, float32, that sums over axis contracted[0] of left and contracted[1] of right."""
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)
