"""The 32-bit finalizer of MurmurHash3 (Appleby 2011): a few operations, with the same result on every device."""

import jax.numpy as jnp
from jaxtyping import Array, UInt32


def murmur3(
    words: UInt32[Array, "*B"], keys: tuple[UInt32[Array, ""], UInt32[Array, ""]] | None = None
) -> UInt32[Array, "*B"]:
    """Hashes each element; before each multiplication a key is mixed in, so that no two pairs give the same pattern."""
    first, second = keys or (jnp.uint32(0), jnp.uint32(0))
    words = words + first
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = words ^ second
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
