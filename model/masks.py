"""Attention masks: True where a query may attend to a key. They broadcast to [B, N, T, S].

B batch, S source (key) length, T target (query) length, N heads.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Lets a query see the keys of its own sentence: [B, T] and [B, S] segment ids (0 is padding) -> [B, 1, T, S]."""
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (key_segments[:, None, :] > 0))[:, None]


def causal_mask(length: int) -> jax.Array:
    """Lets a query see the keys at its own position and before: [1, 1, length, length]."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


class SegmentMask(NamedTuple):
    """Lets a query see the keys of its own sentence, if it is causal none at a later position: query and key segments
    [B, T] and [B, S], where 0 is padding."""

    queries: jax.Array
    keys: jax.Array
    causal: bool = False

    def dense(self) -> jax.Array:
        """The mask as an array, [B, 1, T, S]."""
        mask = segment_mask(self.queries, self.keys)
        return mask & causal_mask(self.queries.shape[1]) if self.causal else mask
