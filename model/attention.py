"""Scaled dot-product attention and the multi-head attention module (Vaswani et al. 2017, section 3.2).

One module serves as self-attention, masked self-attention and cross-attention.

Shapes: B batch, S source (key) length, T target (query) length, D model width, N heads, H = D / N head width.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from lingua_flax.model.kv_cache import KVCache
from lingua_flax.model.masks import Mask, SegmentMask
from lingua_flax.model.parameters import linear
from lingua_flax.model.positions import RotaryEmbedding
from lingua_flax.options.precision import FLOAT32, Precision
from lingua_flax.options.schema import ModelConfig


def scaled_dot_product_attention(
    query: Float[Array, "B N T H"],
    keys: Float[Array, "B N S H"],
    values: Float[Array, "B N S Hv"],
    mask: Bool[Array, "#B #N #T S"] | None = None,
) -> tuple[Float[Array, "B N T Hv"], Float[Array, "B N T S"]]:
    """Computes softmax(Q K^T / sqrt(H)) V (Vaswani et al. 2017, equation 1).

    Scores and softmax are float32, whatever the type of the inputs. The mask is True where a query may attend to a key.
    A query that may attend to no key (padding) gets uniform weights; its output is never used.
    """
    query = query / math.sqrt(query.shape[-1])
    scores = _scores(query, keys)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bnts,bnsh->bnth", weights.astype(values.dtype), values), weights


@jax.custom_vjp
def _scores(query: Float[Array, "B N T H"], keys: Float[Array, "B N S H"]) -> Float[Array, "B N T S"]:
    """Computes Q K^T in float32; its gradients are products in the type of Q and K, which JAX would convert."""
    return jnp.einsum("bnth,bnsh->bnts", query, keys, preferred_element_type=jnp.float32)


def _scores_forward(query: jax.Array, keys: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _scores(query, keys), (query, keys)


def _scores_backward(operands: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, pull_back = jax.vjp(functools.partial(jnp.einsum, "bnth,bnsh->bnts"), *operands)
    return pull_back(gradient.astype(operands[0].dtype))


_scores.defvjp(_scores_forward, _scores_backward)


# Fused attention, which does not expose its weights: (queries [B, N, T, H], keys [B, N, S, H], values [B, N, S, H],
# mask) -> [B, N, T, H]. It is part of the static network structure by which compiled programs are looked up, so two
# instances that compute the same function must compare equal.
AttentionKernel = Callable[[jax.Array, jax.Array, jax.Array, SegmentMask], jax.Array]


class AttentionResult(NamedTuple):
    """What multi-head attention computes, for whoever uses it; fused attention computes no weights."""

    output: Float[Array, "B T D"]
    heads: Float[Array, "B T D"]  # what the heads compute, concatenated: the input of the output projection
    weights: Float[Array, "B N T S"] | None  # float32
    queries: Float[Array, "B N T H"]  # normalized and rotated, as the keys are
    cache: KVCache
    mask: Bool[Array, "#B #N #T S"] | None


class MultiHeadAttention(nnx.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2), whose projections have biases with `attention_bias`.

    In self-attention, queries, keys and values are projected from the same vectors; in cross-attention, keys and values
    are projected from the encoder's output, the memory.

    With `qk_norm`, each query and each key of a head is divided by its root mean square and multiplied by a learned
    scale of size H that all heads share, so that scores cannot grow with the projections and training tolerates a
    higher learning rate. This is a variant of Henry et al. (2020), who learn a single number. Rotary embeddings are
    applied after this normalization.
    """

    def __init__(
        self,
        config: ModelConfig,
        precision: Precision = FLOAT32,
        fused: AttentionKernel | None = None,
        *,
        rngs: nnx.Rngs,
        is_cross: bool = False,
    ):
        """Creates the projections; `fused` replaces equation 1 for segment masks."""
        self.fused = fused
        self.num_heads = config.num_heads
        self.is_rotary = config.rotary_cross_attention or not is_cross
        width, head_dim = config.embed_dim, config.embed_dim // config.num_heads

        def projection(input_axis: str, output_axis: str) -> nnx.Linear:
            return linear(
                width, width, (input_axis, output_axis), bias=config.attention_bias, precision=precision, rngs=rngs
            )

        self.query, self.key, self.value = (projection("embed", "heads") for _ in range(3))
        self.output = projection("heads", "embed")
        normalizes = config.qk_norm and not (is_cross and config.qk_norm == "self")
        self.query_norm, self.key_norm = (
            nnx.RMSNorm(head_dim, epsilon=config.norm_epsilon, dtype=precision.activations, rngs=rngs)
            if normalizes
            else None
            for _ in range(2)
        )

    def project(
        self, x: Float[Array, "B T D"], rotary: RotaryEmbedding | None = None
    ) -> tuple[Float[Array, "B N T H"], KVCache]:
        """Projects x to queries and to keys and values, for self-attention."""
        # Gradients are added in the reverse order. Another order would change the last digits of training runs.
        if self.fused:
            return self.queries(x, rotary), self.keys_values(x, rotary)
        cache = self.keys_values(x, rotary)
        return self.queries(x, rotary), cache

    def queries(self, x: Float[Array, "B T D"], rotary: RotaryEmbedding | None = None) -> Float[Array, "B N T H"]:
        """Projects x to queries."""
        return self._heads(self.query(x), self.query_norm, rotary)

    def keys_values(self, memory: Float[Array, "B S D"], rotary: RotaryEmbedding | None = None) -> KVCache:
        """Projects memory to keys and values, which can be attended to many times, as decoding does."""
        keys = self._heads(self.key(memory), self.key_norm, rotary)
        return KVCache(jnp.swapaxes(keys, 2, 3), split_heads(self.value(memory), self.num_heads))

    def __call__(self, queries: Float[Array, "B N T H"], cache: KVCache, mask: Mask | None = None) -> AttentionResult:
        """Lets the queries attend to keys and values; without a mask, every query to every key."""
        keys, dense = jnp.swapaxes(cache.keys, 2, 3), mask.dense() if isinstance(mask, SegmentMask) else mask
        if self.fused and isinstance(mask, SegmentMask):
            attended, weights = self.fused(queries, keys, cache.values, mask), None
        else:
            attended, weights = scaled_dot_product_attention(queries, keys, cache.values, dense)
        heads = merge_heads(attended)
        return AttentionResult(self.output(heads), heads, weights, queries, cache, dense)

    def _heads(
        self, x: Float[Array, "B T D"], norm: nnx.RMSNorm | None, rotary: RotaryEmbedding | None
    ) -> Float[Array, "B N T H"]:
        """Splits projected queries or keys into heads, and normalizes and rotates these."""
        heads = split_heads(x, self.num_heads)
        heads = norm(heads) if norm else heads
        return rotary.rotate(heads) if rotary and self.is_rotary else heads


def split_heads(x: Float[Array, "B T D"], num_heads: int) -> Float[Array, "B N T H"]:
    """Splits vectors into those of the heads, which are concatenated along D."""
    return jnp.swapaxes(x.reshape(*x.shape[:-1], num_heads, -1), 1, 2)


def merge_heads(heads: Float[Array, "B N T H"]) -> Float[Array, "B T D"]:
    """Concatenates the heads along D."""
    return jnp.swapaxes(heads, 1, 2).reshape(heads.shape[0], heads.shape[2], -1)
