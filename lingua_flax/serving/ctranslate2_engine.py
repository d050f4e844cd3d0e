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

from lingua_flax.export import ctranslate2_model
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.files import new_folder
from lingua_flax.model.parameters import params_by_name
from lingua_flax.options.schema import DecodingOptions, Quantization
from lingua_flax.serving.engine import Item, Result
from lingua_flax.translation.hypotheses import Hypothesis, join_parts, unchanged
from lingua_flax.translation.line_splitting import Piece
from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


MAX_BATCH = 64


class CTranslate2Engine:
    """Translates on the CPU, with the tokenizer of each target language."""

    aligns = False
    workers = 1

    def __init__(self, model: Path, translators: Mapping[str, Translator], options: DecodingOptions):
        """Loads a model from its folder.

        Of the options, it uses beam size, length penalty and batch size; CTranslate2 divides a score by length^alpha.
        """
        self._model = ctranslate2.Translator(str(model), compute_type="default")
        self._translators = translators  # of which it uses how they divide lines, and their tokenizers
        self._max_length = next(iter(translators.values())).max_length
        self._options = options
        self.max_batch = options.batch_size or MAX_BATCH

    def translate(self, items: Sequence[Item]) -> list[Result]:
        """Translates the items, in order."""
        pieces = [self._pieces(item) for item in items]
        hypotheses = iter(self._search([piece for own in pieces for piece in own], items))
        results = []
        for item, own in zip(items, pieces, strict=True):
            joined = join_parts([(piece.text, piece.after, next(hypotheses)) for piece in own])
            results.append(Result([hypothesis.text for hypothesis in joined[: item.num_hypotheses]]))
        return results

    def _pieces(self, item: Item) -> list[Piece]:
        """Returns the pieces of a line, none if it has no tokens."""
        (pieces,) = self._translators[item.target].divided([item.line])
        return [piece for piece in pieces if len(piece.ids) > 1]

    def _search(self, pieces: Sequence[Piece], items: Sequence[Item]) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each piece, best first."""
        found = iter(self._translated([piece for piece in pieces if not piece.is_unknown], items))
        count = max((item.num_hypotheses for item in items), default=1)
        return [unchanged(piece.text, count) if piece.is_unknown else next(found) for piece in pieces]

    def _translated(self, pieces: Sequence[Piece], items: Sequence[Item]) -> list[tuple[Hypothesis, ...]]:
        if not pieces:
            return []
        tokenizer = next(iter(self._translators.values())).tokenizer  # all have the same pieces
        found = self._model.translate_batch(
            [tokenizer.source_pieces(piece.ids) for piece in pieces],
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
    return CTranslate2Engine(folder, translators, options)


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
