"""Translating a test set and scoring it: every line, in order, against references as they stand in the corpus."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from configs.schema import DecodingOptions
from translation.contrast import Flips, contrast_flips, contrast_pairs
from translation.scores import Scores, score
from translation.translator import Translator


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Translations of a test set, their scores, and how long decoding took in seconds."""

    translations: tuple[str, ...]
    scores: Scores
    checkpoint_step: int
    beam_size: int
    seconds: float
    contrast_pairs: int | None = None
    contrast_right: int | None = None
    flips: Flips | None = None

    def as_json(self) -> dict[str, float | int | str]:
        """One flat object; what was not computed is left out."""
        numbers = {
            "checkpoint_step": self.checkpoint_step,
            "beam_size": self.beam_size,
            "seconds": self.seconds,
            "sentences_per_second": len(self.translations) / self.seconds,
        }
        contrast = {"contrast_pairs": self.contrast_pairs, "contrast_right": self.contrast_right}
        if self.flips:
            contrast |= {
                "contrast_hidden_pairs": self.flips.pairs,
                "contrast_flipped": self.flips.flipped,
                "contrast_flipped_control": self.flips.flipped_control,
            }
        return dataclasses.asdict(self.scores) | numbers | {k: v for k, v in contrast.items() if v is not None}


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    options: DecodingOptions,
    *,
    contrast: bool = False,
    after_batch: Callable[[int], None] = lambda sentences: None,
) -> Evaluation:
    """Translates the sources and scores the translations.

    Args:
      contrast: the lines are pairs that differ in the word that decides an ambiguous one; count those that are right,
        and those of them in which hiding that word turns a translation to the other reading.
    """
    started = time.monotonic()
    translations = [found.text for found in translator.translate(sources, options, after_batch=after_batch)]
    seconds = time.monotonic() - started
    pairs, right = contrast_pairs(translations, references) if contrast else (None, None)
    flips = contrast_flips(translator, sources, references, translations, options) if contrast else None
    return Evaluation(
        translations=tuple(translations),
        scores=score(translations, references),
        checkpoint_step=translator.step,
        beam_size=options.beam_size,
        seconds=seconds,
        contrast_pairs=pairs,
        contrast_right=right,
        flips=flips,
    )


def sample_indices(count: int, most: int) -> Sequence[int]:
    """At most so many of `count` lines to show, evenly spaced, the same every time."""
    return range(0, count, max(1, count // most))[:most]
