"""Attention weights of every layer and head for one translation, with the tokens that they refer to.

S source tokens, T target tokens, N heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.observation import observe, source_tokens
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import group_pieces

JSON_DECIMALS = 6
MAX_WORDS_PER_ROW = 4  # source words shown in each row of the table


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one forward pass over a sentence and its translation.

    Tokens are pieces of the tokenizer. At position t the decoder has read target_read[: t + 1], which begins with <s>,
    and predicts target_written[t].

    Attributes:
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

        def rounded(weights: np.ndarray) -> Any:
            return np.round(weights.astype(float), JSON_DECIMALS).tolist()

        return {
            "text": self.text,
            "translation": self.translation,
            "source_tokens": list(self.source_tokens),
            "target_tokens_read": list(self.target_read),
            "target_tokens_written": list(self.target_written),
            "encoder_self_attention": rounded(self.encoder),
            "decoder_self_attention": rounded(self.decoder),
            "cross_attention": rounded(self.cross),
        }

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


def attention_maps(translator: Translator, translation: Translation) -> AttentionMaps:
    """Returns the weights of one forward pass over a line and its best translation.

    Placeholders are shown as what they stand for.

    Raises UserError if the line has no token, or too many for one pass.
    """
    source, written = source_tokens(translator, translation.source), translation.hypotheses[0].tokens
    observed = observe(translator, source, written)
    tokenizer, protected = translator.tokenizer, translator.tokenizer.protect(translation.source)

    def shown(ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(protected.restored, tokenizer.target_pieces(ids)))

    return AttentionMaps(
        text=translation.source,
        translation=translation.text,
        source_tokens=tuple(map(protected.original, tokenizer.source_pieces(source))),
        target_read=shown([BOS_ID, *written[:-1]]),
        target_written=shown(written),
        encoder=observed.encoder,
        decoder=observed.decoder,
        cross=observed.cross,
    )


def position_table(translator: Translator) -> np.ndarray:
    """Returns the model's position encodings, [max_length, D]; raises UserError if its positions are rotary."""
    table = nnx.merge(translator.graphdef, translator.params).position_table()
    if table is None:
        raise UserError("this model's positions are rotary: queries and keys are rotated, and no encodings are added")
    return np.asarray(table)
