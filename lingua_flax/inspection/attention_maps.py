"""Attention weights of every layer and head for one translation.

S source tokens, T target tokens, N heads.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.inspection.interventions import Inspection
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.translation.words import group_pieces

JSON_DECIMALS = 6
MAX_WORDS_PER_ROW = 4  # source words shown in each row of the table


class AttentionMaps(NamedTuple):
    """The attention weights of one forward pass over a sentence and its translation, by the keys of the JSON file.

    At position t the decoder has read target_tokens_read[: t + 1], which begins with <s>, and predicts
    target_tokens_written[t]. Weights are float32 [layers, N, queries, keys].
    """

    text: str
    translation: str
    source_tokens: Sequence[str]
    target_tokens_read: Sequence[str]
    target_tokens_written: Sequence[str]
    encoder_self_attention: np.ndarray
    decoder_self_attention: np.ndarray
    cross_attention: np.ndarray

    def as_json(self) -> dict[str, Any]:
        """Returns the maps as one JSON object; weights are nested lists [layer][head][query][key]."""
        return {
            name: np.round(value.astype(float), JSON_DECIMALS).tolist() if isinstance(value, np.ndarray) else value
            for name, value in self._asdict().items()
        }

    def attended_source_words(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Returns each target word with the source words and their cross-attention weights, largest first.

        They are means of layers, heads and the tokens of the target word, and sums of the tokens of each source word.
        """
        mean = self.cross_attention.mean(axis=(0, 1))
        source_words = group_pieces(self.source_tokens)
        attended = []
        for target_word in group_pieces(self.target_tokens_written):
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


def attention_maps(inspection: Inspection, tokenizer: Tokenizer) -> AttentionMaps:
    """Returns the weights of an inspection, placeholders shown as what they stand for."""
    source, written = inspection.pieces(tokenizer)
    (start,) = tokenizer.target_pieces([BOS_ID])
    observed = inspection.observation
    weights = (observed.encoder, observed.decoder, observed.cross)
    return AttentionMaps(
        inspection.text, inspection.hypotheses[0].text, source, [start, *written[:-1]], written, *weights
    )
