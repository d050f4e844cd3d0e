"""The layers around attention: feed-forward networks, residual connections, encoder and decoder layers.

Shapes: B batch, S source length, T target length, K beams, D model width, F feed-forward width, N heads.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from lingua_flax.model.attention import FastAttention, MultiHeadAttention
from lingua_flax.model.dropout import Dropout
from lingua_flax.model.key_value_cache import KeysValues
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.parameters import linear
from lingua_flax.model.positions import Rotation
from lingua_flax.options.precision import Precision
from lingua_flax.options.schema import ModelConfig

Extra = TypeVar("Extra")


@jax.custom_vjp
def relu(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Computes max(x, 0), with a gradient from the output, which the matrix product that follows stores anyway."""
    return jnp.maximum(x, 0)


def _relu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = relu(x)
    return y, y


def _relu_backward(y: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(y > 0, gradient, 0),)


relu.defvjp(_relu_forward, _relu_backward)
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": relu, "gelu": jax.nn.gelu}


class FeedForward(nnx.Module):
    """Position-wise feed-forward network, D -> F -> D (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: ModelConfig, *, precision: Precision, rngs: nnx.Rngs):
        d, f = config.embed_dim, config.mlp_dim
        self.up = linear(d, f, ("embed", "mlp"), bias=True, precision=precision, rngs=rngs)
        self.down = linear(f, d, ("mlp", "embed"), bias=True, precision=precision, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout_rate = config.dropout_rate

    def __call__(self, x: Float[Array, "*B D"], dropout: Dropout | None = None) -> Float[Array, "*B D"]:
        """Applies the network to every position."""
        hidden = self.up(x)
        # Dropout commutes with ReLU; applied first, it leaves one array instead of two to store for the backward pass.
        if dropout and self.activation is relu:
            return self.down(relu(dropout(hidden, self.dropout_rate)))
        hidden = self.activation(hidden)
        return self.down(dropout(hidden, self.dropout_rate) if dropout else hidden)


class ResidualConnection(nnx.Module):
    """The residual connection around a sublayer f, with layer normalization and dropout.

    Pre-norm computes x + dropout(f(norm(x))) (Xiong et al. 2020); post-norm computes norm(x + dropout(f(x))) (Vaswani
    et al. 2017).
    """

    def __init__(self, config: ModelConfig, *, precision: Precision, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(config.embed_dim, dtype=precision.activations, rngs=rngs)
        self.pre = config.norm == "pre"
        self.dropout_rate = config.dropout_rate

    def __call__(
        self, x: Float[Array, "*B D"], sublayer: Callable[[Any], tuple[Any, Extra]], dropout: Dropout | None = None
    ) -> tuple[Float[Array, "*B D"], Extra]:
        """Applies the sublayer and the residual connection around it; returns what else the sublayer returns, too."""
        y, extra = sublayer(self.norm(x) if self.pre else x)
        x = x + (dropout(y, self.dropout_rate) if dropout else y)
        return (x if self.pre else self.norm(x)), extra


class EncoderLayer(nnx.Module):
    """An encoder layer: self-attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig, *, precision: Precision, fast: FastAttention | None, rngs: nnx.Rngs):
        self.self_attention = MultiHeadAttention(config, precision=precision, fast=fast, rngs=rngs)
        self.feed_forward = FeedForward(config, precision=precision, rngs=rngs)
        self.self_attention_residual, self.feed_forward_residual = (
            ResidualConnection(config, precision=precision, rngs=rngs) for _ in range(2)
        )

    def __call__(
        self, x: Float[Array, "B S D"], mask: SegmentMask, rotation: Rotation | None, dropout: Dropout | None
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B N S S"] | None]:
        """Applies the layer; the attention weights are None if fast attention is used."""
        x, weights = self.self_attention_residual(
            x, lambda y: self.self_attention(y, y, mask, rotation, rotation, dropout), dropout
        )
        x, _ = self.feed_forward_residual(x, lambda y: (self.feed_forward(y, dropout), None), dropout)
        return x, weights


class DecoderLayer(nnx.Module):
    """A decoder layer: masked self-attention, cross-attention to the source, then the feed-forward network."""

    def __init__(self, config: ModelConfig, *, precision: Precision, fast: FastAttention | None, rngs: nnx.Rngs):
        self.self_attention, self.cross_attention = (
            MultiHeadAttention(config, is_cross=is_cross, precision=precision, fast=fast, rngs=rngs)
            for is_cross in (False, True)
        )
        self.rotary_cross_attention = config.rotary_cross_attention
        self.feed_forward = FeedForward(config, precision=precision, rngs=rngs)
        self.self_attention_residual, self.cross_attention_residual, self.feed_forward_residual = (
            ResidualConnection(config, precision=precision, rngs=rngs) for _ in range(3)
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        self_mask: SegmentMask,
        cross_mask: SegmentMask,
        rotation: Rotation | None,
        memory_rotation: Rotation | None,
        dropout: Dropout | None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B N T T"] | None, Float[Array, "B N T S"] | None]:
        """Applies the layer to all positions at once; `memory` is the encoder's output.

        The attention weights, of self-attention and of cross-attention, are None if fast attention is used.
        """
        cross_rotations = (rotation, memory_rotation) if self.rotary_cross_attention else (None, None)
        x, self_weights = self.self_attention_residual(
            x, lambda y: self.self_attention(y, y, self_mask, rotation, rotation, dropout), dropout
        )
        x, cross_weights = self.cross_attention_residual(
            x, lambda y: self.cross_attention(y, memory, cross_mask, *cross_rotations, dropout), dropout
        )
        x, _ = self.feed_forward_residual(x, lambda y: (self.feed_forward(y, dropout), None), dropout)
        return x, self_weights, cross_weights

    def step(
        self,
        x: Float[Array, "B K D"],
        index: Int[Array, ""],
        cache: KeysValues,
        self_mask: Bool[Array, "B 1 K T"],
        memory: KeysValues,
        cross_mask: Bool[Array, "B 1 1 S"],
        rotation: Rotation | None,
    ) -> tuple[Float[Array, "B K D"], KeysValues]:
        """Applies the layer to a single position of every beam, which it adds to the earlier positions in the cache.

        The K beams of a sentence are K queries to one memory and to one cache, which they share. The cache holds the
        entries of all beams at all positions: beam k at position t is entry t * K + k. The mask restricts each beam to
        its own history, this position included, so neither memory nor cache is ever copied or reordered when the search
        reorders its beams.
        """
        cross_rotation = rotation if self.rotary_cross_attention else None

        def masked_self_attention(y: jax.Array) -> tuple[jax.Array, KeysValues]:
            updated = cache.updated(self.self_attention.keys_values(y, rotation), index * x.shape[1])
            return self.self_attention.attend(y, updated, self_mask, rotation)[0], updated

        x, updated = self.self_attention_residual(x, masked_self_attention)
        x, _ = self.cross_attention_residual(
            x, lambda y: self.cross_attention.attend(y, memory, cross_mask, cross_rotation)
        )
        x, _ = self.feed_forward_residual(x, lambda y: (self.feed_forward(y), None))
        return x, updated
