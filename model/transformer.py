"""The encoder/decoder Transformer (Vaswani et al. 2017).

B batch, S source length, T target length, K beams, D model width, V vocabulary, N heads, H head width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model.attention import FastAttention, Weights
from model.dropout import Dropout
from model.key_value_cache import Cache, KeysValues
from model.layers import DecoderLayer, EncoderLayer
from model.masks import SegmentMask
from model.parameters import along
from model.positions import Rotation, sinusoidal_positions
from options.schema import ModelConfig
from options.special_ids import PAD_ID


class AttentionWeights(NamedTuple):
    """The attention weights of a forward pass, one array a layer, each float32 [B, N, queries, keys]; None where fast
    attention computes none."""

    encoder: list[Weights]
    decoder: list[Weights]
    cross: list[Weights]


class Memory(NamedTuple):
    """What decoding needs of the source, computed once: each decoder layer's keys and values, and who may look."""

    caches: list[Cache]
    mask: jax.Array


class Transformer(nnx.Module):
    """Token ids in, logits out. Masks are built here, from ids and segments, so that no caller can forget one.

    A batch holds one sentence a row, padded with PAD_ID, or several packed into a row: then `segments` numbers the
    sentences of each row from 1 (0 is padding) and `positions` counts from 0 within each sentence.
    """

    def __init__(
        self,
        config: ModelConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        dtype: jnp.dtype = jnp.float32,
        fast: FastAttention | None = None,
        rngs: nnx.Rngs,
    ):
        """Builds the network with float32 parameters; `dtype` is the type of its activations, `fast` what computes
        attention where no weights are asked for."""
        self.config = config
        self.dtype = dtype
        self.target_embedding = self._embedding(target_vocab_size, rngs)
        self.source_embedding = None if config.tied_embeddings == "all" else self._embedding(source_vocab_size, rngs)
        self.output_embedding = self._embedding(target_vocab_size, rngs) if config.tied_embeddings == "none" else None
        learned = config.positions == "learned"
        self.position_embedding = self._table(config.max_length, 0.02, None, rngs) if learned else None
        self.encoder = nnx.List(
            [EncoderLayer(config, dtype=dtype, fast=fast, rngs=rngs) for _ in range(config.num_encoder_layers)]
        )
        self.decoder = nnx.List(
            [DecoderLayer(config, dtype=dtype, fast=fast, rngs=rngs) for _ in range(config.num_decoder_layers)]
        )
        pre = config.norm == "pre"  # the residual stream of pre-norm layers leaves the stack without a norm of its own
        self.encoder_norm = nnx.LayerNorm(config.embed_dim, dtype=dtype, rngs=rngs) if pre else None
        self.decoder_norm = nnx.LayerNorm(config.embed_dim, dtype=dtype, rngs=rngs) if pre else None

    def __call__(self, source: jax.Array, target_in: jax.Array, **options: Any) -> tuple[jax.Array, AttentionWeights]:
        """source [B, S], target_in [B, T] -> logits [B, T, V] float32 and the attention weights.

        Logits at position t are for the token that follows target_in[t]. options: those of `hidden_states`.
        """
        x, weights = self.hidden_states(source, target_in, **options)
        return self._logits(x), weights

    def hidden_states(
        self,
        source: jax.Array,
        target_in: jax.Array,
        *,
        source_segments: jax.Array | None = None,
        source_positions: jax.Array | None = None,
        target_segments: jax.Array | None = None,
        target_positions: jax.Array | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[jax.Array, AttentionWeights]:
        """Like __call__, but for the last product: [B, T, D], whose product with output_table is the logits.

        Segments and positions are those of packed rows; dropout only where `dropout` is given.
        """
        source_segments = _segments(source, source_segments)
        target_segments = _segments(target_in, target_segments)
        source_positions = _positions(source, source_positions)
        target_positions = _positions(target_in, target_positions)
        memory, encoder_weights = self.encode(source, source_segments, source_positions, dropout)
        self_mask = SegmentMask(target_segments, target_segments, causal=True)
        cross_mask = SegmentMask(target_segments, source_segments)
        x = self._embed(self.target_embedding, target_in, target_positions, dropout)
        rotations = self._rotation(target_positions), self._rotation(source_positions)
        weights = AttentionWeights(encoder_weights, [], [])
        for layer in self.decoder:
            x, decoder_weights, cross_weights = layer(x, memory, self_mask, cross_mask, *rotations, dropout)
            weights.decoder.append(decoder_weights)
            weights.cross.append(cross_weights)
        return (self.decoder_norm(x) if self.decoder_norm else x), weights

    def encode(
        self,
        source: jax.Array,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        dropout: Dropout | None = None,
    ) -> tuple[jax.Array, list[Weights]]:
        """source [B, S] -> its encoding [B, S, D] and the self-attention weights of each layer."""
        segments, positions = _segments(source, segments), _positions(source, positions)
        mask = SegmentMask(segments, segments)
        embedding = self.source_embedding if self.source_embedding is not None else self.target_embedding
        x = self._embed(embedding, source, positions, dropout)
        rotation = self._rotation(positions)
        weights = []
        for layer in self.encoder:
            x, attended = layer(x, mask, rotation, dropout)
            weights.append(attended)
        return (self.encoder_norm(x) if self.encoder_norm else x), weights

    def start_decoding(
        self, source: jax.Array, num_beams: int, length: int, segments: jax.Array | None = None
    ) -> tuple[Memory, list[Cache]]:
        """Encodes source [B, S], one sentence a row; empty caches of length * K positions for each decoder layer.

        Where `segments` [B, S] is 0 no layer may look, as at padding; by default that is at padding only.
        """
        segments = _segments(source, segments)
        encoded, _ = self.encode(source, segments)
        rotation = self._rotation(_positions(source, None))
        memory = Memory(
            [Cache.holding(layer.cross_attention.keys_values(encoded, rotation)) for layer in self.decoder],
            (segments > 0)[:, None, None],
        )
        heads = self.config.num_heads
        empty = jnp.zeros((len(source), heads, length * num_beams, self.config.embed_dim // heads), self.dtype)
        return memory, [Cache.holding(KeysValues(empty, empty)) for _ in self.decoder]

    def decode_step(
        self, tokens: jax.Array, index: jax.Array, lineage: jax.Array, memory: Memory, caches: list[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """tokens [B, K] at position `index` of their sentences -> logits [B, K, V] for the next ones, new caches.

        lineage [B, K, length]: in which row, of 0 to K - 1, the token stood that each beam has at each position so far.
        """
        beams, length = tokens.shape[1], lineage.shape[2]
        own = lineage[..., None] == jnp.arange(beams)  # [B, K, length, K]
        self_mask = (own & (jnp.arange(length) <= index)[:, None]).reshape(len(tokens), 1, beams, length * beams)
        positions = jnp.full_like(tokens, index)
        x = self._embed(self.target_embedding, tokens, positions, None)
        rotation = self._rotation(positions)
        updated = []
        for layer, cache, of_source in zip(self.decoder, caches, memory.caches, strict=True):
            x, cache = layer.step(x, index, cache, self_mask, of_source, memory.mask, rotation)
            updated.append(cache)
        return self._logits(self.decoder_norm(x) if self.decoder_norm else x), updated

    @property
    def output_table(self) -> jax.Array:
        """The embeddings [V, D] whose products with the decoder's output are the logits."""
        return (self.output_embedding if self.output_embedding is not None else self.target_embedding)[...]

    def position_table(self) -> jax.Array | None:
        """What is added to the embedding at each position, [max_length, D]: learned, or sinusoids; None if rotary."""
        if self.config.positions == "rotary":
            return None
        if self.position_embedding is not None:
            return self.position_embedding[...]
        return sinusoidal_positions(self.config.max_length, self.config.embed_dim, self.config.position_base)

    def _rotation(self, positions: jax.Array) -> Rotation | None:
        """That of positions [B, T], if they are rotary."""
        config = self.config
        if config.positions != "rotary":
            return None
        return Rotation.at(positions, config.embed_dim // config.num_heads, config.position_base)

    def _embedding(self, vocab_size: int, rngs: nnx.Rngs) -> nnx.Param:
        return self._table(vocab_size, self.config.embed_dim**-0.5, "vocab", rngs)

    def _table(self, rows: int, deviation: float, axis: str | None, rngs: nnx.Rngs) -> nnx.Param:
        init = nnx.initializers.normal(deviation)
        table = init(rngs.params(), (rows, self.config.embed_dim), jnp.float32)
        return nnx.Param(table, **along(axis, "embed"))

    def _embed(self, embedding: nnx.Param, ids: jax.Array, positions: jax.Array, dropout: Dropout | None) -> jax.Array:
        """ids [B, T] -> embeddings scaled by sqrt(D), plus position encodings if there are any, [B, T, D]."""
        config = self.config
        x = embedding[...][ids] * math.sqrt(config.embed_dim)
        encodings = self.position_table()
        if encodings is not None:
            x += encodings[positions]
        return (dropout(x, config.dropout_rate) if dropout else x).astype(self.dtype)

    def _logits(self, x: jax.Array) -> jax.Array:
        return jnp.einsum("...d,vd->...v", x, self.output_table.astype(self.dtype), preferred_element_type=jnp.float32)


class Structure(NamedTuple):
    """The network without its numbers.

    graphdef: what nnx.merge needs beside the parameters; params: those, as jax.ShapeDtypeStruct; axes: a PartitionSpec
    for each, with the logical names of its axes (see model/parameters.py); an empty one is never shared out.
    """

    graphdef: nnx.GraphDef
    params: Any
    axes: Any


def structure(
    config: ModelConfig,
    source_vocab_size: int,
    target_vocab_size: int,
    dtype: jnp.dtype = jnp.float32,
    fast: FastAttention | None = None,
) -> Structure:
    """The structure of the network that `Transformer` makes with the same arguments."""
    model = nnx.eval_shape(
        lambda: Transformer(config, source_vocab_size, target_vocab_size, dtype=dtype, fast=fast, rngs=nnx.Rngs(0))
    )
    graphdef, params = nnx.split(model, nnx.Param)  # raises where a random state hides in the model
    return Structure(graphdef, nnx.as_pure(params), nnx.as_pure(nnx.get_partition_spec(params)))


def initial_params(config: ModelConfig, source_vocab_size: int, target_vocab_size: int, key: jax.Array) -> Any:
    """Fresh float32 parameters, a plain tree; to be called under jax.jit, whose out_shardings place them.

    The numbers are the same on any mesh.
    """
    model = Transformer(config, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(params=key))
    return nnx.as_pure(nnx.state(model, nnx.Param))


def _segments(ids: jax.Array, segments: jax.Array | None) -> jax.Array:
    """Segment ids [B, T] of unpacked rows: 1 where there is a token, 0 at padding."""
    return (ids != PAD_ID).astype(jnp.int32) if segments is None else segments


def _positions(ids: jax.Array, positions: jax.Array | None) -> jax.Array:
    """Positions [B, T] of unpacked rows: counted from 0."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape) if positions is None else positions
