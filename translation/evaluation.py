"""Translating a test set and scoring it: every line, in order, against references as they stand in the corpus."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from configs.schema import DecodingOptions
from translation.contrast import Flips, contrast_flips, contrast_pairs
from translation.scores import Comparison, Scores, compare, score
from translation.translator import Translator


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Translations of a test set, their scores, and how long decoding took, and compilation before it, in seconds."""

    translations: tuple[str, ...]
    scores: Scores
    checkpoint_step: int
    decoding: DecodingOptions
    seconds: float
    compile_seconds: float
    contrast_pairs: int | None = None
    contrast_right: int | None = None
    flips: Flips | None = None
    comparison: Comparison | None = None

    def as_json(self) -> dict[str, float | int | str]:
        """One flat object; what was not computed is left out."""
        numbers = {
            "checkpoint_step": self.checkpoint_step,
            **self._how_decoded(),
            "seconds": self.seconds,
            "sentences_per_second": len(self.translations) / self.seconds,
            "compile_seconds": self.compile_seconds,
        }
        comparison = dataclasses.asdict(self.comparison) if self.comparison else {}
        contrast = {"contrast_pairs": self.contrast_pairs, "contrast_right": self.contrast_right}
        if self.flips:
            contrast |= {
                "contrast_hidden_pairs": self.flips.pairs,
                "contrast_flipped": self.flips.flipped,
                "contrast_flipped_control": self.flips.flipped_control,
            }
        contrast = {name: number for name, number in contrast.items() if number is not None}
        return dataclasses.asdict(self.scores) | numbers | contrast | comparison

    def _how_decoded(self) -> dict[str, float | int]:
        names = ("temperature", "top_k", "top_p", "seed") if self.decoding.temperature else ("beam_size",)
        return {name: getattr(self.decoding, name) for name in names if getattr(self.decoding, name) is not None}

    def decoding_shown(self) -> str:
        """How the translations were found, for people: beam 5, or temperature 0.8, top_p 0.9, seed 0."""
        return ", ".join(f"{name.removesuffix('_size')} {value}" for name, value in self._how_decoded().items())


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    options: DecodingOptions,
    *,
    contrast: bool = False,
    baseline: Sequence[str] | None = None,
    after_batch: Callable[[int], None] = lambda sentences: None,
) -> Evaluation:
    """Translates the sources and scores the translations; those of a model that writes lower case without case.

    Args:
      contrast: the lines are pairs that differ in the word that decides an ambiguous one; count those that are right,
        and those of them in which hiding that word turns a translation to the other reading.
      baseline: another system's translations of the sources, to compare with.
    """
    before = time.monotonic()
    translator.warm_up(sources, options)
    started = time.monotonic()
    translations = [found.text for found in translator.translate(sources, options, after_batch=after_batch)]
    seconds = time.monotonic() - started
    lowercase = translator.tokenizer.lowercase
    pairs = right = flips = None
    if contrast:
        fold = str.casefold if lowercase else str
        compared = [fold(line) for line in translations], [fold(line) for line in references]
        pairs, right = contrast_pairs(*compared)
        flips = contrast_flips(translator, sources, *compared, options)
    return Evaluation(
        translations=tuple(translations),
        scores=score(translations, references, lowercase=lowercase),
        checkpoint_step=translator.step,
        decoding=options,
        seconds=seconds,
        compile_seconds=started - before,
        contrast_pairs=pairs,
        contrast_right=right,
        flips=flips,
        comparison=compare(translations, baseline, references, lowercase=lowercase) if baseline is not None else None,
    )


def sample_indices(count: int, most: int) -> Sequence[int]:
    """At most so many of `count` lines to show, evenly spaced, the same every time."""
    return range(0, count, max(1, count // most))[:most]
