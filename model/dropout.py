"""Dropout whose mask is a function of (key, site, position): the same on any number of devices, and after a resume."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32


class Dropout:
    """The dropout masks of one forward pass.

    Each call with a nonzero rate is a separate site; sites are numbered in the order in which the network calls them.
    An element is dropped if the hash of (key, site, flat index of the element) is below rate * 2**32. The hash is much
    cheaper on a CPU than JAX's default generator, and depends only on global indices, so sharding does not change it.
    """

    def __init__(self, key: jax.Array | None):
        """Takes a key unique to the step and, if batches are accumulated, to the part; None if nothing is dropped."""
        self._key = key
        self._sites = 0

    def __call__(self, x: Float[Array, "*B"], rate: float) -> Float[Array, "*B"]:
        """Zeroes each element of x with probability `rate` and multiplies the others by 1 / (1 - rate)."""
        if self._key is None or not rate:
            return x
        words = jax.random.bits(jax.random.fold_in(self._key, self._sites), (2,), jnp.uint32)
        self._sites += 1
        first_kept = min(round(rate * 2**32), 2**32 - 1)  # a rate just below 1 would be rounded to 1
        keep = murmur3(_flat_indices(x.shape), (words[0], words[1])) >= jnp.uint32(first_kept)
        return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


NO_DROPOUT = Dropout(None)


def _flat_indices(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Returns row-major indices, which wrap around at 2**32, far above the size of any activation."""
    indices = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis, size in enumerate(shape):
        indices = indices * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return indices


def murmur3(
    words: UInt32[Array, "*B"], keys: tuple[UInt32[Array, ""], UInt32[Array, ""]] | None = None
) -> UInt32[Array, "*B"]:
    """Hashes each element with the 32-bit finalizer of MurmurHash3 (Appleby 2011), the same on every device.

    Before each multiplication a key is mixed in, so that no two pairs give the same pattern.
    """
    first, second = keys or (jnp.uint32(0), jnp.uint32(0))
    words = words + first
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = words ^ second
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
