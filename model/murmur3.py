"""MurmurHash3's 32-bit finalizer (Appleby 2011): a hash of integers in a few operations, the same on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def murmur3(words: jax.Array, keys: tuple[jax.Array, jax.Array] | None = None) -> jax.Array:
    """Hashes each uint32 of an array.

    Args:
      keys: two uint32 scalars of which one enters before each multiplication, so that no two pairs of keys give the
        same pattern.
    """
    first, second = keys or (jnp.uint32(0), jnp.uint32(0))
    words = words + first
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = words ^ second
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
