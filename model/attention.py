"""Scaled dot-product attention and the multi-head attention module (Vaswani et al. 2017, section 3.2).

One module serves as self-attention, masked self-attention and cross-attention.

Shapes: B batch, S source (key) length, T target (query) length, D model width, N heads, H = D / N head width.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from lingua_flax.model.dropout import Dropout
from lingua_flax.model.key_value_cache import KeysValues
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.parameters import linear
from lingua_flax.model.positions import Rotation
from lingua_flax.options.precision import FLOAT32, Precision
from lingua_flax.options.schema import ModelConfig


def scaled_dot_product_attention(
    query: Float[Array, "B N T H"],
    keys: Float[Array, "B N S H"],
    values: Float[Array, "B N S Hv"],
    mask: Bool[Array, "#B #N #T S"] | None = None,
    *,
    dropout: Dropout | None = None,
    dropout_rate: float = 0.0,
) -> tuple[Float[Array, "B N T Hv"], Float[Array, "B N T S"]]:
    """Computes softmax(Q K^T / sqrt(H)) V (Vaswani et al. 2017, equation 1).

    Scores and softmax are float32, whatever the type of the inputs. The mask is True where a query may attend to a key.
    A query that may attend to no key (padding) gets uniform weights; its output is never used. During training, dropout
    is applied to the weights that multiply the values, but not to those that are returned.
    """
    query = query / math.sqrt(query.shape[-1])
    scores = _scores(query, keys)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    dropped = dropout(weights, dropout_rate) if dropout else weights
    return jnp.einsum("bnts,bnsh->bnth", dropped.astype(values.dtype), values), weights


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


# An attention implementation that does not expose its weights: (query [B, T, D], keys [B, S, D], values [B, S, D],
# number of heads, mask) -> [B, T, D], with the N heads concatenated along D. It is part of the static network structure
# by which compiled programs are looked up, so two instances that compute the same function must compare equal.
FastAttention = Callable[[jax.Array, jax.Array, jax.Array, int, SegmentMask], jax.Array]
Weights = Float[Array, "B N T S"] | None  # fast attention does not compute them


class MultiHeadAttention(nnx.Module):
    """Multi-head attention with bias-free projections (Vaswani et al. 2017, section 3.2.2).

    It computes self-attention if `memory` is `x` itself, and cross-attention if `memory` is the encoder's output. Keys
    and values can be projected once and attended to many times, as decoding does.

    With `qk_norm`, each query and each key of a head is divided by its root mean square and multiplied by a learned
    scale of size H that all heads share, so that scores cannot grow with the projections and training tolerates a
    higher learning rate. This is a variant of Henry et al. (2020), who learn a single number. Rotary positions are
    applied after this normalization.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        is_cross: bool = False,
        precision: Precision = FLOAT32,
        fast: FastAttention | None = None,
        rngs: nnx.Rngs,
    ):
        """Creates the projections; `fast` replaces equation 1 whenever there is a mask, and applies no dropout."""
        self.fast = fast
        self.num_heads = config.num_heads
        self.dropout_rate = config.attention_dropout_rate
        width, head_dim = config.embed_dim, config.embed_dim // config.num_heads

        def projection(input_axis: str, output_axis: str) -> nnx.Linear:
            return linear(width, width, (input_axis, output_axis), bias=False, precision=precision, rngs=rngs)

        self.query, self.key, self.value = (projection("embed", "heads") for _ in range(3))
        self.output = projection("heads", "embed")
        normalizes = config.qk_norm and not (is_cross and config.qk_norm == "self")
        self.query_norm, self.key_norm = (
            nnx.RMSNorm(head_dim, dtype=precision.activations, rngs=rngs) if normalizes else None for _ in range(2)
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: SegmentMask | None = None,
        rotation: Rotation | None = None,
        memory_rotation: Rotation | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B N T S"] | None]:
        """Lets every position of `x` (the queries) attend to the positions of `memory` (the keys and values).

        Without a mask, every query may attend to every key. If positions are rotary, `rotation` is that of the queries
        and `memory_rotation` that of the keys. The attention weights are None if fast attention is used.
        """
        if self.fast and mask:
            query = self._normalize_and_rotate_merged(self.query(x), self.query_norm, rotation)
            keys = self._normalize_and_rotate_merged(self.key(memory), self.key_norm, memory_rotation)
            return self.output(self.fast(query, keys, self.value(memory), self.num_heads, mask)), None
        dense_mask = mask.dense() if mask else None
        return self.attend(x, self.keys_values(memory, memory_rotation), dense_mask, rotation, dropout)

    def queries(self, x: Float[Array, "B T D"], rotation: Rotation | None = None) -> Float[Array, "B N T H"]:
        """Projects x to queries."""
        return _normalize_and_rotate(self._split_heads(self.query(x)), self.query_norm, rotation)

    def keys_values(self, memory: Float[Array, "B S D"], rotation: Rotation | None = None) -> KeysValues:
        """Projects memory to keys and values."""
        keys = _normalize_and_rotate(self._split_heads(self.key(memory)), self.key_norm, rotation)
        return KeysValues(jnp.swapaxes(keys, 2, 3), self._split_heads(self.value(memory)))

    def attend(
        self,
        x: Float[Array, "B T D"],
        memory: KeysValues,
        mask: Bool[Array, "#B #N #T S"] | None = None,
        rotation: Rotation | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B N T S"]]:
        """Computes `__call__` by equation 1, given keys and values that `keys_values` has projected already."""
        query, keys = self.queries(x, rotation), jnp.swapaxes(memory.keys, 2, 3)
        heads, weights = scaled_dot_product_attention(
            query, keys, memory.values, mask, dropout=dropout, dropout_rate=self.dropout_rate
        )
        return self.output(merge_heads(heads)), weights

    def _split_heads(self, x: Float[Array, "B T D"]) -> Float[Array, "B N T H"]:
        return jnp.swapaxes(x.reshape(*x.shape[:-1], self.num_heads, -1), 1, 2)

    def _normalize_and_rotate_merged(
        self, x: Float[Array, "B T D"], norm: nnx.RMSNorm | None, rotation: Rotation | None
    ) -> Float[Array, "B T D"]:
        """Applies `_normalize_and_rotate` to queries or keys whose heads are concatenated along D."""
        # If both are None, x is returned as it is, which avoids a change of its memory layout.
        return merge_heads(_normalize_and_rotate(self._split_heads(x), norm, rotation)) if norm or rotation else x


def merge_heads(heads: Float[Array, "B N T H"]) -> Float[Array, "B T D"]:
    """Concatenates the heads along D."""
    return jnp.swapaxes(heads, 1, 2).reshape(heads.shape[0], heads.shape[2], -1)


def _normalize_and_rotate(
    heads: Float[Array, "B N T H"], norm: nnx.RMSNorm | None, rotation: Rotation | None
) -> Float[Array, "B N T H"]:
    heads = norm(heads) if norm else heads
    return rotation.rotate(heads) if rotation else heads
