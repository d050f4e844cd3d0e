"""Translating with CTranslate2, with a model that is exported when the server starts."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ctranslate2

from lingua_flax.export import ctranslate2_model
from lingua_flax.options.schema import DecodingOptions, Quantization
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator

MAX_BATCH = 64


@dataclasses.dataclass(frozen=True)
class CTranslate2Translator(Translator):
    """A translator that searches with CTranslate2, on the CPU.

    Of the options, it uses beam size, length penalty and batch size; CTranslate2 divides a score by length^alpha. What
    needs more of the network than a search, such as aligning words, is still computed with JAX.

    Attributes:
      model: the exported network.
    """

    model: Any = None

    def search(
        self,
        parts: Sequence[Part],
        options: DecodingOptions,
        num_hypotheses: int,
        after_batch: Callable[[int], None],
    ) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each part, best first."""
        if not parts:
            return []
        found = self.model.translate_batch(
            [self.tokenizer.source_pieces(part.source) for part in parts],
            max_batch_size=options.batch_size or MAX_BATCH,
            beam_size=options.beam_size,
            num_hypotheses=num_hypotheses,
            length_penalty=options.length_penalty,
            patience=ctranslate2_model.PATIENCE,
            min_decoding_length=0,
            # The same for every batch, so that no result depends on the lines of other requests; without the end token.
            max_decoding_length=self.max_length - 1,
            return_scores=True,
        )
        after_batch(sum(part.part == 0 for part in parts))
        return [tuple(map(self._hypothesis, result.hypotheses, result.scores)) for result in found]

    def _hypothesis(self, pieces: Sequence[str], score: float) -> Hypothesis:
        ids = [self.tokenizer.target.piece_to_id(piece) for piece in pieces]
        (text,) = self.tokenizer.decode_target([ids])
        return Hypothesis(text, score, (*ids, EOS_ID))


def load_ctranslate2(
    translators: Mapping[str, Translator], quantization: Quantization
) -> dict[str, CTranslate2Translator]:
    """Exports the network of a run into a temporary folder, and loads it from there.

    `translators` has one for each target language. Raises UserError if CTranslate2 cannot represent the network.
    """
    first, *_ = translators.values()
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2_model.write_ctranslate2(first, Path(folder), quantization)
        model = ctranslate2.Translator(folder, compute_type="default")  # keeps no file open
    return {language: CTranslate2Translator(**vars(own), model=model) for language, own in translators.items()}
