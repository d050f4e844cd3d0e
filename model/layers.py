"""The layers around attention: feed-forward networks, residual connections, encoder and decoder layers.

Shapes: B batch, S source (key) length, T target (query) length, K beams, D model width, F feed-forward width.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from lingua_flax.model.attention import AttentionKernel, AttentionResult, MultiHeadAttention
from lingua_flax.model.dropout import NO_DROPOUT, Dropout
from lingua_flax.model.kv_cache import KVCache
from lingua_flax.model.masks import Mask
from lingua_flax.model.parameters import layer_norm, linear
from lingua_flax.model.positions import RotaryEmbedding
from lingua_flax.options.precision import Precision
from lingua_flax.options.schema import ModelConfig


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
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class FeedForward(nnx.Module):
    """Position-wise feed-forward network, D -> F -> D (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        d, f = config.embed_dim, config.mlp_dim
        self.up = linear(d, f, ("embed", "mlp"), bias=True, precision=precision, rngs=rngs)
        self.down = linear(f, d, ("mlp", "embed"), bias=True, precision=precision, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout_rate = config.dropout_rate

    def __call__(self, x: Float[Array, "*B D"], dropout: Dropout = NO_DROPOUT) -> Float[Array, "*B D"]:
        """Applies the network to every position."""
        hidden = self.up(x)
        # Dropout commutes with ReLU; applied first, it leaves one array instead of two to store for the backward pass.
        if self.activation is relu:
            return self.down(relu(dropout(hidden, self.dropout_rate)))
        return self.down(dropout(self.activation(hidden), self.dropout_rate))


class ResidualConnection(nnx.Module):
    """The residual connection around a sublayer f, with layer normalization and dropout.

    Pre-norm computes x + dropout(f(norm(x))) (Xiong et al. 2020); post-norm computes norm(x + dropout(f(x))) (Vaswani
    et al. 2017).
    """

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        self.norm = layer_norm(config, precision.activations, rngs)
        self.pre = config.norm == "pre"
        self.dropout_rate = config.dropout_rate

    def before(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Returns what the sublayer reads, f's argument."""
        return self.norm(x) if self.pre else x

    def after(self, x: Float[Array, "*B D"], y: Float[Array, "*B D"], dropout: Dropout) -> Float[Array, "*B D"]:
        """Adds the output y of the sublayer to x."""
        x = x + dropout(y, self.dropout_rate)
        return x if self.pre else self.norm(x)


class AttentionSublayer(NamedTuple):
    """What an attention and the residual connection around it computed."""

    before: Float[Array, "B T D"]
    read: Float[Array, "B T D"]  # by the queries
    attention: AttentionResult
    after: Float[Array, "B T D"]


class EncoderLayer(nnx.Module):
    """An encoder layer: self-attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig, precision: Precision, fused: AttentionKernel | None, rngs: nnx.Rngs):
        self.self_attention = MultiHeadAttention(config, precision, fused, rngs=rngs)
        self.feed_forward = FeedForward(config, precision, rngs)
        self.self_attention_residual, self.feed_forward_residual = (
            ResidualConnection(config, precision, rngs) for _ in range(2)
        )

    def __call__(
        self, x: Float[Array, "B S D"], mask: Mask, rotary: RotaryEmbedding | None, dropout: Dropout
    ) -> tuple[Float[Array, "B S D"], AttentionSublayer]:
        """Applies the layer."""
        y = self.self_attention_residual.before(x)
        attention = self.self_attention(*self.self_attention.project(y, rotary), mask)
        before, x = x, self.self_attention_residual.after(x, attention.output, dropout)
        sublayer = AttentionSublayer(before, y, attention, x)
        y = self.feed_forward(self.feed_forward_residual.before(x), dropout)
        return self.feed_forward_residual.after(x, y, dropout), sublayer


class DecoderLayer(nnx.Module):
    """A decoder layer: masked self-attention, cross-attention to the source, then the feed-forward network."""

    def __init__(self, config: ModelConfig, precision: Precision, fused: AttentionKernel | None, rngs: nnx.Rngs):
        self.self_attention, self.cross_attention = (
            MultiHeadAttention(config, precision, fused, rngs=rngs, is_cross=is_cross) for is_cross in (False, True)
        )
        self.feed_forward = FeedForward(config, precision, rngs)
        self.self_attention_residual, self.cross_attention_residual, self.feed_forward_residual = (
            ResidualConnection(config, precision, rngs) for _ in range(3)
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source_cache: KVCache,
        self_mask: Mask,
        cross_mask: Mask,
        rotary: RotaryEmbedding | None,
        dropout: Dropout = NO_DROPOUT,
        past: KVCache | None = None,
        start: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "B T D"], AttentionSublayer, AttentionSublayer]:
        """Applies the layer, whose cross-attention attends to `source_cache`.

        Self-attention attends to x alone, or to the `past` with x in it from entry `start` on, which is then the
        `cache` in its result.
        """
        y = self.self_attention_residual.before(x)
        queries, own = self.self_attention.project(y, rotary)
        cache = past.updated(own, start) if past else own
        attention = self.self_attention(queries, cache, self_mask)
        before, x = x, self.self_attention_residual.after(x, attention.output, dropout)
        self_sublayer = AttentionSublayer(before, y, attention, x)
        y = self.cross_attention_residual.before(x)
        queries = self.cross_attention.queries(y, rotary)
        attention = self.cross_attention(queries, source_cache, cross_mask)
        before, x = x, self.cross_attention_residual.after(x, attention.output, dropout)
        cross_sublayer = AttentionSublayer(before, y, attention, x)
        y = self.feed_forward(self.feed_forward_residual.before(x), dropout)
        return self.feed_forward_residual.after(x, y, dropout), self_sublayer, cross_sublayer
