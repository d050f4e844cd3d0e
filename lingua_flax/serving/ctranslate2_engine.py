"""The engine that translates with CTranslate2, with a model that is exported into the cache when the server starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import ctranslate2
import numpy as np

from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.export import ctranslate2_model
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.files import new_folder
from lingua_flax.model.parameters import params_by_name
from lingua_flax.options.schema import DecodingOptions, Quantization
from lingua_flax.serving.engine import Item, Result
from lingua_flax.translation.hypotheses import Hypothesis, join_parts
from lingua_flax.translation.line_splitting import split_source
from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


MAX_BATCH = 64


class CTranslate2Engine:
    """Translates on the CPU, with one tokenizer for each target language."""

    aligns = False
    workers = 1

    def __init__(self, model: Path, tokenizers: Mapping[str, Tokenizer], max_length: int, options: DecodingOptions):
        """Loads a model from its folder.

        Of the options, it uses beam size, length penalty and batch size; CTranslate2 divides a score by length^alpha.
        """
        self._model = ctranslate2.Translator(str(model), compute_type="default")
        self._tokenizers = tokenizers
        self._max_length = max_length
        self._options = options
        self.max_batch = options.batch_size or MAX_BATCH

    def translate(self, items: Sequence[Item]) -> list[Result]:
        """Translates the items, in order."""
        parts = [self._parts(item) for item in items]
        hypotheses = iter(self._search([part for own in parts for part in own], items))
        results = []
        for item, own in zip(items, parts, strict=True):
            joined = join_parts([(text, next(hypotheses)) for text, _ in own])
            results.append(Result([hypothesis.text for hypothesis in joined[: item.num_hypotheses]]))
        return results

    def _parts(self, item: Item) -> list[tuple[str, list[int]]]:
        """Returns the parts of a line, none if it has no tokens."""
        parts = split_source(item.line, self._tokenizers[item.target], self._max_length)
        return [(text, ids) for text, ids in parts if len(ids) > 1]

    def _search(self, parts: Sequence[tuple[str, list[int]]], items: Sequence[Item]) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each part, best first."""
        if not parts:
            return []
        tokenizer = next(iter(self._tokenizers.values()))  # all have the same pieces
        found = self._model.translate_batch(
            [tokenizer.source_pieces(ids) for _, ids in parts],
            max_batch_size=self.max_batch,
            beam_size=self._options.beam_size,
            num_hypotheses=max(item.num_hypotheses for item in items),
            length_penalty=self._options.length_penalty,
            patience=ctranslate2_model.PATIENCE,
            min_decoding_length=0,
            # The same for every batch, so that no result depends on the lines of other requests; without the end token.
            max_decoding_length=self._max_length - 1,
            return_scores=True,
        )
        ids = [[tokenizer.target.piece_to_id(pieces) for pieces in result.hypotheses] for result in found]
        texts = map(tokenizer.decode_target, ids)
        return [tuple(map(Hypothesis, own, result.scores)) for own, result in zip(texts, found, strict=True)]


def load_ctranslate2(
    translators: Mapping[str, Translator], options: DecodingOptions, quantization: Quantization
) -> CTranslate2Engine:
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
    tokenizers = {language: translator.tokenizer for language, translator in translators.items()}
    return CTranslate2Engine(folder, tokenizers, first.max_length, options)


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
