"""Projected keys and values, and the cache in which decoding keeps them.

B batch, S source (key) length, N heads, H head width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class KeysValues(NamedTuple):
    """Projected keys and values of one attention layer, [B, N, S, H] each."""

    keys: jax.Array
    values: jax.Array


class Cache(NamedTuple):
    """Keys [B, N, H, S] and values [B, N, S, H] that lie in memory as the products with a few queries read them.

    Keys with S before H would be turned around in every step of decoding: 1.2 ms instead of 0.3 ms for the scores of 64
    sentences with 5 beams, 4 heads of width 32 and 370 keys on two cores.
    """

    keys: jax.Array
    values: jax.Array

    @classmethod
    def holding(cls, projected: KeysValues) -> Cache:
        """Puts keys and values into a cache."""
        return cls(jnp.swapaxes(projected.keys, 2, 3), projected.values)

    def updated(self, new: KeysValues, start: jax.Array) -> Cache:
        """With the new ones from position `start` on."""
        keys, values = Cache.holding(new)
        return Cache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, keys, start, axis=3),
            jax.lax.dynamic_update_slice_in_dim(self.values, values, start, axis=2),
        )

    def longer(self, positions: int) -> Cache:
        """With room for so many positions, at least as many as there are."""
        more = (0, positions - self.values.shape[2])
        keys = jnp.pad(self.keys, ((0, 0), (0, 0), (0, 0), more))
        return Cache(keys, jnp.pad(self.values, ((0, 0), (0, 0), more, (0, 0))))

    def keys_values(self) -> KeysValues:
        """What it holds."""
        return KeysValues(jnp.swapaxes(self.keys, 2, 3), self.values)
