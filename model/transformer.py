"""The encoder-decoder Transformer (Vaswani et al. 2017).

Shapes: B batch, S source length, T target length, K beams, D model width, V target vocabulary size.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int

from lingua_flax.model.attention import AttentionKernel
from lingua_flax.model.dropout import NO_DROPOUT, Dropout
from lingua_flax.model.kv_cache import KVCache
from lingua_flax.model.layers import AttentionSublayer, DecoderLayer, EncoderLayer
from lingua_flax.model.lookup import lookup
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.parameters import axis_metadata, layer_norm, params_by_name, partition_specs, replace_params
from lingua_flax.model.positions import RotaryEmbedding, sinusoidal_positions
from lingua_flax.options.precision import FLOAT32, Precision
from lingua_flax.options.schema import ModelConfig
from lingua_flax.options.special_ids import PAD_ID


class AttentionSublayers(NamedTuple):
    """What the attention sublayers of a forward pass computed, by layer."""

    encoder: list[AttentionSublayer]
    decoder: list[AttentionSublayer]  # self-attention
    cross: list[AttentionSublayer]
    memory: Float[Array, "B S D"]  # the encoder's output, from which cross-attention projects keys and values


class EncodedSource(NamedTuple):
    """What decoding keeps of the encoder's output: the keys and values of each layer's cross-attention."""

    caches: list[KVCache]
    mask: Bool[Array, "B 1 1 S"]  # True for the source positions that may be attended to

    def padded_to(self, length: int) -> EncodedSource:
        """Returns the source with more positions, to which nothing attends."""
        mask = jnp.pad(self.mask, ((0, 0), (0, 0), (0, 0), (0, length - self.mask.shape[3])))
        return EncodedSource([cache.padded_to(length) for cache in self.caches], mask)


class Transformer(nnx.Module):
    """The network from token ids to logits, which builds all attention masks itself, so that no caller can omit one.

    A batch holds either one sentence per row, padded with PAD_ID, or several sentences packed into each row. In packed
    rows, `segments` numbers the sentences of each row from 1 (0 marks padding), and `positions` counts from 0 within
    each sentence.
    """

    def __init__(
        self,
        config: ModelConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        precision: Precision = FLOAT32,
        fused: AttentionKernel | None = None,
        rngs: nnx.Rngs,
    ):
        """Creates the network with float32 parameters, whatever the precision in which it computes.

        Passes over whole rows use `fused`, if given, instead of equation 1, and then return no attention weights.
        """
        self.config = config
        self.dtype, self.product_dtype = precision
        self.target_embedding = self._embedding(target_vocab_size, rngs)
        self.source_embedding = None if config.tied_embeddings == "all" else self._embedding(source_vocab_size, rngs)
        self.output_embedding = self._embedding(target_vocab_size, rngs) if config.tied_embeddings == "none" else None
        biases = nnx.Param(jnp.zeros(target_vocab_size), **axis_metadata("vocab")) if config.output_bias else None
        self.output_bias = biases
        learned = config.positions == "learned"
        self.position_embedding = self._table(config.max_length, 0.02, None, rngs) if learned else None
        options = (config, precision, fused, rngs)
        self.encoder = nnx.data([EncoderLayer(*options) for _ in range(config.num_encoder_layers)])
        self.decoder = nnx.data([DecoderLayer(*options) for _ in range(config.num_decoder_layers)])
        is_pre_norm = config.norm == "pre"  # the last pre-norm layer leaves its output unnormalized
        self.encoder_norm = layer_norm(config, self.dtype, rngs) if is_pre_norm else None
        self.decoder_norm = layer_norm(config, self.dtype, rngs) if is_pre_norm else None

    def __call__(
        self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], **options: Any
    ) -> tuple[Float32[Array, "B T V"], AttentionSublayers]:
        """Computes the logits of every next target token; `options` are keyword arguments of `hidden_states`.

        Position t of the logits predicts the token that follows target_in[:, t].
        """
        x, attentions = self.hidden_states(source, target_in, **options)
        return self.logits(x), attentions

    def hidden_states(
        self,
        source: Int[Array, "B S"],
        target_in: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        source_positions: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        target_positions: Int[Array, "B T"] | None = None,
        dropout: Dropout = NO_DROPOUT,
    ) -> tuple[Float[Array, "B T D"], AttentionSublayers]:
        """Computes `__call__` without its last layer, `output_table` and `logit_bias`, in the type of products.

        Segments and positions describe packed rows; by default each row is one sentence.
        """
        source_segments, source_positions = _layout(source, source_segments, source_positions)
        target_segments, target_positions = _layout(target_in, target_segments, target_positions)
        memory, encoder = self.encode(source, source_segments, source_positions, dropout)
        self_mask = SegmentMask(target_segments, target_segments, causal=True)
        cross_mask = SegmentMask(target_segments, source_segments)
        x = self._embed(self.target_embedding, target_in, target_positions, dropout)
        rotary = self._rotary(target_positions)
        attentions = AttentionSublayers(encoder, [], [], memory)
        for layer, source_cache in zip(self.decoder, self._source_caches(memory, source_positions), strict=True):
            x, own, cross = layer(x, source_cache, self_mask, cross_mask, rotary, dropout)
            attentions.decoder.append(own)
            attentions.cross.append(cross)
        return (self.decoder_norm(x) if self.decoder_norm else x).astype(self.product_dtype), attentions

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        dropout: Dropout = NO_DROPOUT,
    ) -> tuple[Float[Array, "B S D"], list[AttentionSublayer]]:
        """Encodes the source, with options as in `hidden_states`."""
        mask = SegmentMask(segments, segments)
        embedding = self.source_embedding if self.source_embedding is not None else self.target_embedding
        x = self._embed(embedding, source, positions, dropout)
        rotary = self._rotary(positions)
        attentions = []
        for layer in self.encoder:
            x, attention = layer(x, mask, rotary, dropout)
            attentions.append(attention)
        return (self.encoder_norm(x) if self.encoder_norm else x), attentions

    def start_decoding(
        self, source: Int[Array, "B S"], num_beams: int, length: int, segments: Int[Array, "B S"] | None = None
    ) -> tuple[EncodedSource, list[KVCache]]:
        """Encodes the source, one sentence per row, and creates a cache of `length` positions for each decoder layer.

        No layer attends to source positions whose segment is 0; by default these are the padding.
        """
        segments, positions = _layout(source, segments, None)
        memory, _ = self.encode(source, segments, positions)
        encoded = EncodedSource(self._source_caches(memory, positions), (segments > 0)[:, None, None])
        heads = self.config.num_heads
        empty = jnp.zeros((len(source), heads, length * num_beams, self.config.embed_dim // heads), self.dtype)
        return encoded, [KVCache(jnp.swapaxes(empty, 2, 3), empty) for _ in self.decoder]

    def decode_step(
        self,
        tokens: Int[Array, "B K"],
        positions: Int[Array, "B"],
        slot: Int[Array, ""],
        beam_history: Int[Array, "B K R"],
        encoded: EncodedSource,
        caches: list[KVCache],
    ) -> tuple[Float32[Array, "B K V"], list[KVCache]]:
        """Computes the logits of every beam's token after `positions`, given its tokens at these positions.

        The tokens are kept in one slot of a ring of R slots for all sentences, which may be at different positions. A
        search reorders its beams at every position. Instead of reordering the caches, it passes `beam_history`, from
        which the self-attention mask of every beam is built: for each beam and each slot, the row (0 to K - 1) in which
        the beam's token was processed there; slots before a sentence's first token are ignored. So the K beams of a
        sentence are K queries to caches that they share. Those of the source are `encoded`; the others, of R * K
        entries each, hold beam k of slot t in entry t * K + k, and are returned with these tokens added.
        """
        beams, slots = tokens.shape[1], beam_history.shape[2]
        is_own = beam_history[..., None] == jnp.arange(beams)  # [B, K, R, K]
        positions = jnp.minimum(positions[:, None], slots - 1)  # of a sentence that is done, they go on
        age = (slot - jnp.arange(slots)) % slots
        was_written = (age <= positions)[:, None, :, None]
        self_mask = (is_own & was_written).reshape(len(tokens), 1, beams, slots * beams)
        positions = jnp.broadcast_to(positions, tokens.shape)
        x, rotary = self._embed(self.target_embedding, tokens, positions), self._rotary(positions)
        updated = []
        for layer, source_cache, cache in zip(self.decoder, encoded.caches, caches, strict=True):
            x, own, _ = layer(x, source_cache, self_mask, encoded.mask, rotary, past=cache, start=slot * beams)
            updated.append(own.attention.cache)
        return self.logits(self.decoder_norm(x) if self.decoder_norm else x), updated

    def with_converted_matrices(self) -> Transformer:
        """Returns the network with all matrices in the type of products, from which decoding would convert them anyway.

        A search converts them once instead of at every position. Embeddings are still looked up in float32.
        """
        if self.dtype == self.product_dtype == FLOAT32.products:
            return self
        graphdef, params = nnx.split(self, nnx.Param)
        kernels = {name: leaf for name, leaf in params_by_name(params).items() if name.endswith("kernel")}
        converted = {name: leaf.astype(self.product_dtype) for name, leaf in kernels.items()}
        network = nnx.merge(graphdef, replace_params(params, converted))
        network.output_embedding = nnx.data(nnx.Param(self.output_table.astype(self.product_dtype)))
        return network

    @property
    def output_table(self) -> Float[Array, "V D"]:
        """The output embedding matrix; the products of its rows with the decoder's output are the logits."""
        return (self.output_embedding if self.output_embedding is not None else self.target_embedding)[...]

    @property
    def logit_bias(self) -> Float[Array, "V"] | None:
        """What is added to the logits, with `output_bias`."""
        return None if self.output_bias is None else self.output_bias[...]

    def position_table(self) -> Float[Array, "L D"] | None:
        """Returns the encodings added to the embeddings, learned or sinusoidal, [max_length, D]; None if rotary."""
        match self.config.positions:
            case "rotary":
                return None
            case "learned":
                assert self.position_embedding is not None
                return self.position_embedding[...]
            case "sinusoidal":
                return sinusoidal_positions(self.config.max_length, self.config.embed_dim, self.config.position_base)
            case unknown:
                assert_never(unknown)

    def _source_caches(self, memory: Float[Array, "B S D"], positions: Int[Array, "B S"]) -> list[KVCache]:
        rotary = self._rotary(positions)
        return [layer.cross_attention.keys_values(memory, rotary) for layer in self.decoder]

    def _rotary(self, positions: Int[Array, "B T"]) -> RotaryEmbedding | None:
        config = self.config
        if config.positions != "rotary":
            return None
        return RotaryEmbedding.at(positions, config.embed_dim // config.num_heads, config.position_base)

    def _embedding(self, vocab_size: int, rngs: nnx.Rngs) -> nnx.Param:
        return self._table(vocab_size, self.config.embed_dim**-0.5, "vocab", rngs)

    def _table(self, rows: int, stddev: float, row_axis: str | None, rngs: nnx.Rngs) -> nnx.Param:
        table = nnx.initializers.normal(stddev)(rngs.params(), (rows, self.config.embed_dim), jnp.float32)
        return nnx.Param(table, **axis_metadata(row_axis, "embed"))

    def _embed(
        self,
        embedding: nnx.Param,
        ids: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        dropout: Dropout = NO_DROPOUT,
    ) -> Float[Array, "B T D"]:
        """Returns the embeddings of ids, times sqrt(D), plus the position encodings unless rotary."""
        config = self.config
        x = lookup(embedding[...], ids) * math.sqrt(config.embed_dim)
        encodings = self.position_table()
        if encodings is not None:
            x += lookup(encodings, positions)
        return dropout(x, config.dropout_rate).astype(self.dtype)

    def logits(self, x: Float[Array, "B T D"]) -> Float32[Array, "B T V"]:
        """Computes the logits of the next token from the decoder's output."""
        x, table = x.astype(self.product_dtype), self.output_table.astype(self.product_dtype)
        # A product of matrices: JAX 0.7 has none of bfloat16 with more axes on a CPU.
        y = jnp.einsum("md,vd->mv", x.reshape(-1, x.shape[-1]), table, preferred_element_type=jnp.float32)
        y = y if self.logit_bias is None else y + self.logit_bias
        return y.reshape(*x.shape[:-1], -1)


class Structure(NamedTuple):
    """The network without the values of its parameters."""

    graphdef: nnx.GraphDef  # what `nnx.merge` combines with parameters to rebuild the network
    params: Any  # a tree of `jax.ShapeDtypeStruct`
    axes: Any  # the PartitionSpec of each parameter, with the logical names of its axes (see model/parameters.py)


def structure(
    config: ModelConfig,
    source_vocab_size: int,
    target_vocab_size: int,
    precision: Precision = FLOAT32,
    fused: AttentionKernel | None = None,
) -> Structure:
    """Returns the structure of the `Transformer` with the same arguments, without allocating its parameters."""
    sizes = (source_vocab_size, target_vocab_size)
    model = nnx.eval_shape(lambda: Transformer(config, *sizes, precision=precision, fused=fused, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(model, nnx.Param)  # raises if the model contains a random state
    return Structure(graphdef, nnx.to_pure_dict(params), partition_specs(params))


def initial_params(config: ModelConfig, source_vocab_size: int, target_vocab_size: int, key: jax.Array) -> Any:
    """Returns newly initialized float32 parameters as a plain tree, whose values are the same on any mesh."""
    model = Transformer(config, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def _layout(
    ids: Int[Array, "B T"], segments: Int[Array, "B T"] | None, positions: Int[Array, "B T"] | None
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Returns segments and positions; where they are None, those of unpacked rows, with segment 1 for tokens."""
    own_segments = (ids != PAD_ID).astype(jnp.int32) if segments is None else segments
    own_positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape) if positions is None else positions
    return own_segments, own_positions
