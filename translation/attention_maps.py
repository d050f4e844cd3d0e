"""What a translation looked at: the attention weights of every layer and head, with the tokens they belong to.

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
from translation.words import words_of

DECIMALS = 6  # of the weights in JSON
MOST_LOOKED_AT = 4  # source words in a line of the table


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The weights of one pass of the network over a sentence and its translation.

    The decoder's query at position t has read target_read[: t + 1] (<s> first) and writes target_written[t].

    Attributes:
      encoder: encoder self-attention, float32 [layers, N, S, S]; the second last axis is queries, the last keys.
      decoder: masked decoder self-attention [layers, N, T, T]; its keys are the tokens read.
      cross: cross-attention [layers, N, T, S].
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
        """One object; weights as nested lists [layer][head][query][key]."""
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
        } | {name: np.round(array.astype(float), DECIMALS).tolist() for name, array in weights.items()}

    def looked_at(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """For each word written the source words by the cross-attention they got, most first.

        The weights are means over layers, heads and the word's tokens, summed over the tokens of a source word.
        """
        mean = self.cross.mean(axis=(0, 1))
        columns = words_of(self.source_tokens)
        found = []
        for word in words_of(self.target_written):
            row = mean[list(word.positions)].mean(axis=0)
            shares = [(column.text, float(row[list(column.positions)].sum())) for column in columns]
            found.append((word.text, sorted(shares, key=lambda share: -share[1])))
        return found

    def table(self) -> list[str]:
        """Lines for people: each word written and the words it looked at most."""
        rows = self.looked_at()
        width = max(len(word) for word, _ in rows)
        return [
            f"{word:<{width}}  <- " + ", ".join(f"{text} {share:.2f}" for text, share in shares[:MOST_LOOKED_AT])
            for word, shares in rows
        ]


def source_tokens(translator: Translator, line: str) -> list[int]:
    """The line's token ids.

    Raises:
      UserError: there is nothing to look at, or more than one pass of the network can see.
    """
    (ids,) = translator.tokenizer.encode_source([line])
    longest = translator.max_length
    if len(ids) < 2:
        raise UserError("an attention map needs a sentence, and the line is empty")
    if len(ids) > longest:
        raise UserError(
            f"an attention map shows one pass of the network: the line has {len(ids) - 1} tokens, "
            f"and the model sees at most {longest - 1} and the end token"
        )
    return ids


def attention_maps(translator: Translator, found: Translation) -> AttentionMaps:
    """The weights of a whole pass over a line and its best translation.

    Raises:
      UserError: as source_tokens.
    """
    source, written = source_tokens(translator, found.source), list(found.hypotheses[0].tokens)
    read = [BOS_ID, *written[:-1]]
    longest = translator.max_length
    room = next(length for length in bucket_lengths(longest) if length >= max(len(source), len(read)))
    rows = put_on_devices((pad_rows([source], 1, room), pad_rows([read], 1, room)), replicated(translator.mesh))
    weights = gather_to_host(_weights(translator.params, *rows, graphdef=translator.graphdef))
    s, t = len(source), len(read)
    pieces = translator.tokenizer
    return AttentionMaps(
        text=found.source,
        translation=found.text,
        source_tokens=tuple(pieces.source_pieces(source)),
        target_read=tuple(pieces.target_pieces(read)),
        target_written=tuple(pieces.target_pieces(written)),
        encoder=_without_padding(weights.encoder, s, s),
        decoder=_without_padding(weights.decoder, t, t),
        cross=_without_padding(weights.cross, t, s),
    )


def position_table(translator: Translator) -> np.ndarray:
    """The position encodings in use, [max_length, D].

    Raises:
      UserError: positions are rotary, and no encodings are added to anything.
    """
    table = nnx.merge(translator.graphdef, translator.params).position_table()
    if table is None:
        raise UserError("this model's positions are rotary: they turn queries and keys, and there are no encodings")
    return np.asarray(table)


@functools.partial(jax.jit, static_argnames="graphdef")
def _weights(params: Any, source: jax.Array, target_in: jax.Array, *, graphdef: nnx.GraphDef) -> AttentionWeights:
    return nnx.merge(graphdef, params)(source, target_in)[1]


def _without_padding(layers: list[np.ndarray], queries: int, keys: int) -> np.ndarray:
    """[1, N, room, room] of each layer -> [layers, N, queries, keys]."""
    return np.stack([layer[0, :, :queries, :keys] for layer in layers])
