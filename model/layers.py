"""The parts around attention: feed-forward, add and normalise, encoder and decoder layers.

B batch, S source length, T target length, K beams, D model width, F feed-forward width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from model.attention import FastAttention, MultiHeadAttention, Weights
from model.dropout import Dropout
from model.key_value_cache import Cache
from model.masks import SegmentMask
from model.parameters import linear
from model.positions import Rotation
from options.schema import ModelConfig


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), whose backward pass needs its output alone, which the next product keeps anyhow."""
    return jnp.maximum(x, 0)


def _relu_and_output(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = relu(x)
    return y, y


def _relu_gradient(y: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(y > 0, gradient, 0),)


relu.defvjp(_relu_and_output, _relu_gradient)
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": relu, "gelu": jax.nn.gelu}


class FeedForward(nnx.Module):
    """Two linear layers with a non-linearity between them, at each position by itself: D -> F -> D."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        d, f = config.embed_dim, config.mlp_dim
        self.up = linear(d, f, ("embed", "mlp"), bias=True, dtype=dtype, rngs=rngs)
        self.down = linear(f, d, ("mlp", "embed"), bias=True, dtype=dtype, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout_rate = config.dropout_rate

    def __call__(self, x: jax.Array, dropout: Dropout | None = None) -> jax.Array:
        """[..., D] -> [..., D]."""
        hidden = self.up(x)
        if dropout and self.activation is relu:  # dropout before it is dropout after it, and keeps one array, not two
            return self.down(relu(dropout(hidden, self.dropout_rate)))
        hidden = self.activation(hidden)
        return self.down(dropout(hidden, self.dropout_rate) if dropout else hidden)


class ResidualConnection(nnx.Module):
    """The residual connection around a sublayer f, with layer norm and dropout.

    pre: x + dropout(f(norm(x))) (Xiong et al. 2020); post: norm(x + dropout(f(x))) (Vaswani et al. 2017).
    """

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(config.embed_dim, dtype=dtype, rngs=rngs)
        self.pre = config.norm == "pre"
        self.dropout_rate = config.dropout_rate

    def __call__(
        self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array], dropout: Dropout | None = None
    ) -> jax.Array:
        """[..., D] -> [..., D]."""
        y = sublayer(self.norm(x) if self.pre else x)
        x = x + (dropout(y, self.dropout_rate) if dropout else y)
        return x if self.pre else self.norm(x)


class EncoderLayer(nnx.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, fast: FastAttention | None = None, rngs: nnx.Rngs):
        self.self_attention = _attention(config, dtype=dtype, fast=fast, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, rngs=rngs)
        self.self_attention_residual, self.feed_forward_residual = (
            ResidualConnection(config, dtype=dtype, rngs=rngs) for _ in range(2)
        )

    def __call__(
        self, x: jax.Array, mask: SegmentMask, rotation: Rotation | None = None, dropout: Dropout | None = None
    ) -> tuple[jax.Array, Weights]:
        """x [B, S, D] -> [B, S, D] and attention weights [B, N, S, S]; rotation: that of the positions, if rotary."""
        weights: list[Weights] = []

        def self_attention(y: jax.Array) -> tuple[jax.Array, Weights]:
            return self.self_attention(y, y, mask, rotation, rotation, dropout)

        x = self.self_attention_residual(x, _noting(weights, self_attention), dropout)
        x = self.feed_forward_residual(x, lambda y: self.feed_forward(y, dropout), dropout)
        return x, weights[0]


class DecoderLayer(nnx.Module):
    """Masked self-attention, cross-attention to the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, fast: FastAttention | None = None, rngs: nnx.Rngs):
        self.self_attention = _attention(config, dtype=dtype, fast=fast, rngs=rngs)
        self.cross_attention = _attention(config, dtype=dtype, fast=fast, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, rngs=rngs)
        self.self_attention_residual, self.cross_attention_residual, self.feed_forward_residual = (
            ResidualConnection(config, dtype=dtype, rngs=rngs) for _ in range(3)
        )

    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array,
        self_mask: SegmentMask,
        cross_mask: SegmentMask,
        rotation: Rotation | None = None,
        memory_rotation: Rotation | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[jax.Array, Weights, Weights]:
        """x [B, T, D], memory [B, S, D] -> [B, T, D], self weights [B, N, T, T], cross weights [B, N, T, S].

        rotation, memory_rotation: those of the positions of x and of memory, if positions are rotary.
        """
        weights: list[Weights] = []

        def self_attention(y: jax.Array) -> tuple[jax.Array, Weights]:
            return self.self_attention(y, y, self_mask, rotation, rotation, dropout)

        def cross_attention(y: jax.Array) -> tuple[jax.Array, Weights]:
            return self.cross_attention(y, memory, cross_mask, rotation, memory_rotation, dropout)

        x = self.self_attention_residual(x, _noting(weights, self_attention), dropout)
        x = self.cross_attention_residual(x, _noting(weights, cross_attention), dropout)
        x = self.feed_forward_residual(x, lambda y: self.feed_forward(y, dropout), dropout)
        return x, weights[0], weights[1]

    def step(
        self,
        x: jax.Array,
        index: jax.Array,
        cache: Cache,
        self_mask: jax.Array,
        memory: Cache,
        cross_mask: jax.Array,
        rotation: Rotation | None = None,
    ) -> tuple[jax.Array, Cache]:
        """One position of every beam, x [B, K, D], at position `index`, with what came before in the cache.

        The beams of a sentence are so many queries on the one memory, of S positions, and on the one cache, of T * K,
        of which the mask [B, 1, K, T * K] shows each beam its own history: neither is ever copied or put into another
        order. Returns the new x and the cache with this position in it.
        """
        updated = cache

        def masked_self_attention(y: jax.Array) -> jax.Array:
            nonlocal updated
            updated = cache.updated(self.self_attention.keys_values(y, rotation), index * x.shape[1])
            return self.self_attention.attend(y, updated.keys_values(), self_mask, rotation)[0]

        def cross_attention(y: jax.Array) -> jax.Array:
            return self.cross_attention.attend(y, memory.keys_values(), cross_mask, rotation)[0]

        x = self.self_attention_residual(x, masked_self_attention)
        x = self.cross_attention_residual(x, cross_attention)
        return self.feed_forward_residual(x, self.feed_forward), updated


def _attention(
    config: ModelConfig, *, dtype: jnp.dtype, fast: FastAttention | None, rngs: nnx.Rngs
) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.embed_dim,
        config.num_heads,
        qk_norm=config.qk_norm,
        dropout_rate=config.attention_dropout_rate,
        dtype=dtype,
        fast=fast,
        rngs=rngs,
    )


def _noting(
    weights: list[Weights], attention: Callable[[jax.Array], tuple[jax.Array, Weights]]
) -> Callable[[jax.Array], jax.Array]:
    """The attention as a sublayer that appends its weights to a list; compiled programs drop those nobody reads."""

    def sublayer(x: jax.Array) -> jax.Array:
        output, attended = attention(x)
        weights.append(attended)
        return output

    return sublayer
