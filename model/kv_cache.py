"""Projected keys and values, which decoding keeps in a cache.

Shapes: B batch, S key positions, N heads, H head width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KVCache(NamedTuple):
    """The projected keys and values of one attention layer, as decoding with its few queries reads them.

    Keys stored as [B, N, S, H] would be transposed in every decoding step.
    """

    keys: Float[Array, "B N H S"]
    values: Float[Array, "B N S H"]

    def updated(self, new: KVCache, start: Int[Array, ""] | int) -> KVCache:
        """Returns the cache with its entries from position `start` on replaced by the new keys and values."""
        return KVCache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, new.keys, start, axis=3),
            jax.lax.dynamic_update_slice_in_dim(self.values, new.values, start, axis=2),
        )

    def padded_to(self, positions: int) -> KVCache:
        """Returns the cache padded with zeros to `positions` positions, which must not be fewer than it has."""
        padding = (0, positions - self.values.shape[2])
        keys = jnp.pad(self.keys, ((0, 0), (0, 0), (0, 0), padding))
        return KVCache(keys, jnp.pad(self.values, ((0, 0), (0, 0), padding, (0, 0))))
