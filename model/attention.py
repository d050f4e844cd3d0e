"""Scaled dot-product attention and the multi-head module that serves self-, masked self- and cross-attention.

B batch, S source (key) length, T target (query) length, D model width, N heads, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model.dropout import Dropout
from model.key_value_cache import KeysValues
from model.masks import SegmentMask
from model.parameters import linear
from model.positions import Rotation


def scaled_dot_product_attention(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    *,
    dropout: Dropout | None = None,
    dropout_rate: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """softmax(Q K^T / sqrt(H)) V (Vaswani et al. 2017, equation 1); the softmax is float32 whatever the inputs are.

    Args:
      query: [B, N, T, H].
      keys, values: [B, N, S, H].
      mask: True where a query may look; one that may look nowhere (padding) gets uniform weights that no one reads.
      dropout, dropout_rate: dropout of the weights in training.

    Returns:
      The outputs [B, N, T, H] and the weights [B, N, T, S] before dropout, float32.
    """
    query = query / math.sqrt(query.shape[-1])
    scores = jnp.einsum("bnth,bnsh->bnts", query, keys, preferred_element_type=jnp.float32)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    dropped = dropout(weights, dropout_rate) if dropout else weights
    return jnp.einsum("bnts,bnsh->bnth", dropped.astype(values.dtype), values), weights


# Attention that computes no weights to look at: query [B, T, D], keys and values [B, S, D], the number of heads, which
# lie side by side, and the mask -> [B, T, D]. It is part of the network's structure, for which programs are compiled,
# so it has to be equal to another one that does the same.
FastAttention = Callable[[jax.Array, jax.Array, jax.Array, int, SegmentMask], jax.Array]


Weights = Any  # of attention: an array [B, N, T, S], or None where fast attention computes none


class MultiHeadAttention(nnx.Module):
    """N attention heads side by side between projections without bias (Vaswani et al. 2017, section 3.2.2).

    Self-attention where `memory` is `x` itself, masked by a causal mask; cross-attention where it is the output of the
    encoder. Keys and values can be projected once and attended to many times, as decoding does.

    With qk_norm each query and each key of a head is divided by its root mean square and multiplied by a learned scale,
    one for all heads (as Henry et al. 2020, who learn one number): scores cannot grow with the projections, which bears
    a higher learning rate. A rotation turns what that gives.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        qk_norm: bool = False,
        dropout_rate: float,
        dtype: jnp.dtype,
        fast: FastAttention | None = None,
        rngs: nnx.Rngs,
    ):
        """Args: fast: computes what a SegmentMask masks, instead of equation 1 as it is written."""
        self.fast = fast
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate

        def projection(first: str, second: str) -> nnx.Linear:
            return linear(embed_dim, embed_dim, (first, second), bias=False, dtype=dtype, rngs=rngs)

        self.query, self.key, self.value = (projection("embed", "heads") for _ in range(3))
        self.output = projection("heads", "embed")
        head_dim = embed_dim // num_heads
        self.query_norm = nnx.RMSNorm(head_dim, dtype=dtype, rngs=rngs) if qk_norm else None
        self.key_norm = nnx.RMSNorm(head_dim, dtype=dtype, rngs=rngs) if qk_norm else None

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        mask: SegmentMask | jax.Array | None = None,
        rotation: Rotation | None = None,
        memory_rotation: Rotation | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[jax.Array, Weights]:
        """x [B, T, D] attends to memory [B, S, D]: output [B, T, D] and weights [B, N, T, S], if they are computed.

        rotation, memory_rotation: turn the queries and the keys.
        """
        if self.fast and isinstance(mask, SegmentMask):
            query = self._side_by_side(self.query(x), self.query_norm, rotation)
            keys = self._side_by_side(self.key(memory), self.key_norm, memory_rotation)
            return self.output(self.fast(query, keys, self.value(memory), self.num_heads, mask)), None
        mask = mask.dense() if isinstance(mask, SegmentMask) else mask
        return self.attend(x, self.keys_values(memory, memory_rotation), mask, rotation, dropout)

    def keys_values(self, memory: jax.Array, rotation: Rotation | None = None) -> KeysValues:
        """Projects memory [B, S, D] to keys, which `rotation` turns, and values [B, N, S, H]."""
        keys = self._split_heads(self.key(memory))
        return KeysValues(_placed(keys, self.key_norm, rotation), self._split_heads(self.value(memory)))

    def attend(
        self,
        x: jax.Array,
        memory: KeysValues,
        mask: jax.Array | None = None,
        rotation: Rotation | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Like __call__ without fast attention, with keys and values that are projected already."""
        query = _placed(self._split_heads(self.query(x)), self.query_norm, rotation)
        heads, weights = scaled_dot_product_attention(
            query, *memory, mask, dropout=dropout, dropout_rate=self.dropout_rate
        )
        return self.output(_merge_heads(heads)), weights

    def _split_heads(self, x: jax.Array) -> jax.Array:
        """[B, T, D] -> [B, N, T, H]."""
        return jnp.swapaxes(x.reshape(*x.shape[:-1], self.num_heads, -1), 1, 2)

    def _side_by_side(self, x: jax.Array, norm: nnx.RMSNorm | None, rotation: Rotation | None) -> jax.Array:
        """Queries or keys [B, T, D] of heads that stay side by side, which no layout in memory has to change for."""
        return _merge_heads(_placed(self._split_heads(x), norm, rotation)) if norm or rotation else x


def _merge_heads(heads: jax.Array) -> jax.Array:
    """[B, N, T, H] -> [B, T, D]."""
    return jnp.swapaxes(heads, 1, 2).reshape(heads.shape[0], heads.shape[2], -1)


def _placed(heads: jax.Array, norm: nnx.RMSNorm | None, rotation: Rotation | None) -> jax.Array:
    """Queries or keys [B, N, T, H], normalised and turned where there is something to do so."""
    heads = norm(heads) if norm else heads
    return rotation.turn(heads) if rotation else heads
