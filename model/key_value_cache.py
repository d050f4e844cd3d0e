"""Projected keys and values, and the cache that holds them during decoding.

Shapes: B batch, S key positions, N heads, H head width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeysValues(NamedTuple):
    """The projected keys and values of one attention layer."""

    keys: Float[Array, "B N S H"]
    values: Float[Array, "B N S H"]


class Cache(NamedTuple):
    """Keys and values of one attention layer, in the memory layout in which decoding reads them.

    Decoding multiplies them by only a few queries at a time. Keys stored as [B, N, S, H] would be transposed in every
    decoding step, so they are stored as [B, N, H, S].
    """

    keys: Float[Array, "B N H S"]
    values: Float[Array, "B N S H"]

    @classmethod
    def from_keys_values(cls, projected: KeysValues) -> Cache:
        """Returns a cache that contains the given keys and values."""
        return cls(jnp.swapaxes(projected.keys, 2, 3), projected.values)

    def updated(self, new: KeysValues, start: Int[Array, ""]) -> Cache:
        """Returns the cache with its entries from position `start` on replaced by the new keys and values."""
        keys, values = Cache.from_keys_values(new)
        return Cache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, keys, start, axis=3),
            jax.lax.dynamic_update_slice_in_dim(self.values, values, start, axis=2),
        )

    def padded_to(self, positions: int) -> Cache:
        """Returns the cache padded with zeros to `positions` positions, which must not be fewer than it has."""
        padding = (0, positions - self.values.shape[2])
        keys = jnp.pad(self.keys, ((0, 0), (0, 0), (0, 0), padding))
        return Cache(keys, jnp.pad(self.values, ((0, 0), (0, 0), padding, (0, 0))))

    def keys_values(self) -> KeysValues:
        """Returns the cached keys and values, [B, N, S, H] each."""
        return KeysValues(jnp.swapaxes(self.keys, 2, 3), self.values)
