"""Attention weights of every layer and head for one translation, with the tokens that they refer to.

S source tokens, T target tokens, N heads.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from flax import nnx

from data.batch import bucket_lengths, pad_rows
from devices.processes import gather_to_host
from devices.sharding import put_on_devices, replicated
from host.errors import UserError
from model.transformer import AttentionWeights
from options.special_ids import BOS_ID
from translation.translator import Translation, Translator
from translation.words import group_pieces

JSON_DECIMALS = 6
MAX_WORDS_PER_ROW = 4  # source words shown in each row of the table


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one forward pass over a sentence and its translation.

    At position t the decoder has read target_read[: t + 1], which begins with <s>, and predicts target_written[t].

    Attributes:
      text: the source sentence.
      translation: its translation.
      source_tokens: S pieces.
      target_read: T pieces that the decoder reads.
      target_written: T pieces that the decoder predicts.
      encoder: encoder self-attention, float32 [layers, N, S, S], indexed by query, then by key.
      decoder: masked decoder self-attention, float32 [layers, N, T, T]; the keys are target_read.
      cross: cross-attention, float32 [layers, N, T, S].
    """

    text: str
    translation: str
    source_tokens: tuple[str, ...]
    target_read: tuple[str, ...]
    target_written: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    def as_json(self) -> dict[str, Any]:
        """Returns the maps as one JSON object; weights are nested lists [layer][head][query][key]."""
        weights = {
            "encoder_self_attention": self.encoder,
            "decoder_self_attention": self.decoder,
            "cross_attention": self.cross,
        }
        return {
            "text": self.text,
            "translation": self.translation,
            "source_tokens": list(self.source_tokens),
            "target_tokens_read": list(self.target_read),
            "target_tokens_written": list(self.target_written),
        } | {name: np.round(array.astype(float), JSON_DECIMALS).tolist() for name, array in weights.items()}

    def attended_source_words(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Returns each target word with the source words and their cross-attention weights, largest first.

        The weights are averaged over layers, heads and the tokens of the target word, and summed over the tokens of
        each source word.
        """
        mean = self.cross.mean(axis=(0, 1))
        source_words = group_pieces(self.source_tokens)
        attended = []
        for target_word in group_pieces(self.target_written):
            row = mean[list(target_word.positions)].mean(axis=0)
            weights = [(word.text, float(row[list(word.positions)].sum())) for word in source_words]
            attended.append((target_word.text, sorted(weights, key=lambda weight: -weight[1])))
        return attended

    def table(self) -> list[str]:
        """Returns a printable line for each target word, with the source words that it attends to most."""
        rows = self.attended_source_words()
        width = max(len(word) for word, _ in rows)
        return [
            f"{word:<{width}}  <- " + ", ".join(f"{text} {weight:.2f}" for text, weight in weights[:MAX_WORDS_PER_ROW])
            for word, weights in rows
        ]


def source_tokens(translator: Translator, line: str) -> list[int]:
    """Returns the line's token ids.

    Raises:
      UserError: the line is empty, or has more tokens than the network can process in one pass.
    """
    (ids,) = translator.tokenizer.encode_source([line])
    max_length = translator.max_length
    if len(ids) < 2:
        raise UserError("an attention map needs a sentence, but the line is empty")
    if len(ids) > max_length:
        raise UserError(
            f"an attention map shows one pass of the network: the line has {len(ids) - 1} tokens, "
            f"and the model sees at most {max_length - 1} plus the end token; shorten the line"
        )
    return ids


def attention_maps(translator: Translator, translation: Translation) -> AttentionMaps:
    """Returns the weights of one forward pass over a line and its best translation.

    Raises:
      UserError: as for `source_tokens`.
    """
    source, written = source_tokens(translator, translation.source), list(translation.hypotheses[0].tokens)
    read = [BOS_ID, *written[:-1]]
    max_length = translator.max_length
    padded = next(length for length in bucket_lengths(max_length) if length >= max(len(source), len(read)))
    inputs = put_on_devices((pad_rows([source], 1, padded), pad_rows([read], 1, padded)), replicated(translator.mesh))
    weights = gather_to_host(_attention_weights(translator.params, *inputs, graphdef=translator.graphdef))
    s, t = len(source), len(read)
    tokenizer = translator.tokenizer
    return AttentionMaps(
        text=translation.source,
        translation=translation.text,
        source_tokens=tuple(tokenizer.source_pieces(source)),
        target_read=tuple(tokenizer.target_pieces(read)),
        target_written=tuple(tokenizer.target_pieces(written)),
        encoder=_without_padding(weights.encoder, s, s),
        decoder=_without_padding(weights.decoder, t, t),
        cross=_without_padding(weights.cross, t, s),
    )


def position_table(translator: Translator) -> np.ndarray:
    """Returns the model's position encodings, [max_length, D].

    Raises:
      UserError: the model has rotary positions, which have no table of encodings.
    """
    table = nnx.merge(translator.graphdef, translator.params).position_table()
    if table is None:
        raise UserError("this model's positions are rotary: queries and keys are rotated, and no encodings are added")
    return np.asarray(table)


@functools.partial(jax.jit, static_argnames="graphdef")
def _attention_weights(
    params: Any, source: jax.Array, target_in: jax.Array, *, graphdef: nnx.GraphDef
) -> AttentionWeights:
    return nnx.merge(graphdef, params)(source, target_in)[1]


def _without_padding(layers: list[np.ndarray], queries: int, keys: int) -> np.ndarray:
    """Stacks the layers' weights [1, N, padded, padded] without their padding: [layers, N, queries, keys]."""
    return np.stack([layer[0, :, :queries, :keys] for layer in layers])
