"""Translating with CTranslate2, with a model that is exported into the cache when the server starts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from lingua_flax.export import ctranslate2_model
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.files import new_folder
from lingua_flax.model.parameters import params_by_name
from lingua_flax.options.schema import DecodingOptions, Quantization
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


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
    """Exports the network of a run into the cache, unless it is there already, and loads it.

    `translators` has one for each target language. Raises UserError if CTranslate2 cannot represent the network.
    """
    first, *_ = translators.values()
    folder = cache_directory() / "ctranslate2" / _digest(first, quantization)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), new_folder(folder) as temporary:  # by another server, meanwhile
            ctranslate2_model.write_ctranslate2(first, temporary, quantization)
        log.info("exported to %s", folder)
    model = ctranslate2.Translator(str(folder), compute_type="default")
    return {language: CTranslate2Translator(**vars(own), model=model) for language, own in translators.items()}


def _digest(translator: Translator, quantization: Quantization) -> str:
    """Returns a digest of all that determines the exported model, the code that exports it included."""
    digest = hashlib.sha256(Path(ctranslate2_model.__file__).read_bytes())
    described = [
        translator.tokenizer.fingerprint,
        translator.config.model_dump(),
        quantization,
        ctranslate2.__version__,
    ]
    digest.update(json.dumps(described, sort_keys=True).encode())
    for name, array in params_by_name(translator.params).items():
        digest.update(name.encode())
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()
