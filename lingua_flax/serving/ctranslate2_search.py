"""Searching with CTranslate2, with a model that is exported when the server starts."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ctranslate2

from lingua_flax.export import ctranslate2_model
from lingua_flax.export.description import Export
from lingua_flax.options.schema import DecodingOptions, Quantization
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator

MAX_BATCH = 32


@dataclasses.dataclass(frozen=True)
class CTranslate2Search:
    """Searches with CTranslate2, which cannot end a batch, and divides scores by length^alpha."""

    translator: Translator
    options: DecodingOptions
    model: ctranslate2.Translator

    def max_rows(self, length: int) -> int:
        """Returns how many parts are searched together."""
        return self.options.batch_size or MAX_BATCH

    def search(
        self,
        parts: Sequence[Part],
        is_wanted: Callable[[int], bool],
        more: Callable[[int, int, int], Sequence[Part] | None],
    ) -> Iterator[dict[int, tuple[Hypothesis, ...]]]:
        """Yields the hypotheses of the parts that are wanted, by their numbers, best first; no more can join."""
        tokenizer = self.translator.tokenizer
        wanted = [index for index in range(len(parts)) if is_wanted(index)]
        found = self.model.translate_batch(
            [tokenizer.source_pieces(parts[index].source) for index in wanted],
            beam_size=self.options.beam_size,
            num_hypotheses=max(part.num_hypotheses for part in parts),
            length_penalty=self.options.length_penalty,
            patience=ctranslate2_model.PATIENCE,
            min_decoding_length=0,
            # The same for every batch, so that no result depends on the lines of other requests; without the end token.
            max_decoding_length=self.translator.max_length - 1,
            return_scores=True,
        )
        for index, result in zip(wanted, found, strict=True):
            needed = result.hypotheses[: parts[index].num_hypotheses]
            ids = [list(map(tokenizer.target.piece_to_id, pieces)) for pieces in needed]
            hypotheses = zip(tokenizer.decode_target(ids), result.scores, ids, strict=False)
            yield {index: tuple(Hypothesis(text, score, (*own, EOS_ID)) for text, score, own in hypotheses)}


def load_ctranslate2(
    translator: Translator, options: DecodingOptions, quantization: Quantization, workers: int
) -> CTranslate2Search:
    """Exports the network of a run into a temporary folder, and loads it from there for so many threads."""
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2_model.write(Export(translator, "ctranslate2", quantization), Path(folder))
        # One thread a worker: the threads of a matrix product wait for each other, on cores that are busy for long.
        model = ctranslate2.Translator(folder, compute_type="default", inter_threads=workers, intra_threads=1)
    return CTranslate2Search(translator, options, model)
