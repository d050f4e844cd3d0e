"""Boolean attention masks: True where a query may attend to a key. Every mask broadcasts to [B, N, T, S].

Shapes: B batch, S source (key) length, T target (query) length, N heads.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def segment_mask(query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """Lets each query attend only to the keys of its own sentence, and none to padding, which is segment 0."""
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (key_segments[:, None, :] > 0))[:, None]


def causal_mask(length: int) -> Bool[Array, "1 1 {length} {length}"]:
    """Lets each query attend only to keys at its own and earlier positions."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


class SegmentMask(NamedTuple):
    """A segment mask in compact form, given as the segments of queries and keys; 0 marks padding.

    If it is causal, each query may attend only to keys at its own and earlier positions, which requires S = T.
    """

    queries: Int[Array, "B T"]
    keys: Int[Array, "B S"]
    causal: bool = False

    def dense(self) -> Bool[Array, "B 1 T S"]:
        """Returns the mask as an array."""
        mask = segment_mask(self.queries, self.keys)
        return mask & causal_mask(self.queries.shape[1]) if self.causal else mask


Mask = SegmentMask | Bool[Array, "#B #N #T _"]
