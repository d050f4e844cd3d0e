"""Translating lines and scoring the translations: every line, in order, against references as the corpus has them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from data.corpora.corpus import Corpus, FindReadings
from evaluation.bleu import Comparison, Scores, compare, score
from evaluation.contrast import Flips, contrast_flips, contrast_pairs
from evaluation.published_protocol import PublishedScore, score_published
from options.schema import DecodingOptions
from translation.translator import Translator


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Lines to translate, and their references.

    Attributes:
      find_readings: given if lines 2i and 2i + 1 are a contrast pair.
      multi30k: target language and split of lines of Multi30k, which are scored in its published protocol too.
    """

    title: str
    sources: Sequence[str]
    references: Sequence[str]
    find_readings: FindReadings | None = None
    multi30k: tuple[str, str] | None = None

    @classmethod
    def of_split(cls, corpus: Corpus, split: str) -> EvaluationSet:
        """A split of a corpus.

        Raises:
          UserError: the corpus has no such split.
        """
        pairs = list(corpus.split(split))
        return cls(
            title=f"{corpus.name}, {split}",
            sources=[pair.source for pair in pairs],
            references=[pair.target for pair in pairs],
            find_readings=corpus.find_readings if split == "contrast" else None,
            multi30k=(corpus.target_language, split) if corpus.name == "multi30k" else None,
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Translations and their scores, and how many seconds compilation and then decoding took."""

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
    published: PublishedScore | None = None

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
        published = dataclasses.asdict(self.published) if self.published else {}
        contrast = {"contrast_pairs": self.contrast_pairs, "contrast_right": self.contrast_right}
        if self.flips:
            contrast |= {
                "contrast_hidden_pairs": self.flips.pairs,
                "contrast_flipped": self.flips.flipped,
                "contrast_flipped_control": self.flips.flipped_control,
            }
        contrast = {name: number for name, number in contrast.items() if number is not None}
        return dataclasses.asdict(self.scores) | published | numbers | contrast | comparison

    def _how_decoded(self) -> dict[str, float | int]:
        names = ("temperature", "top_k", "top_p", "seed") if self.decoding.temperature else ("beam_size",)
        return {name: getattr(self.decoding, name) for name in names if getattr(self.decoding, name) is not None}

    def decoding_shown(self) -> str:
        """How the translations were found, for people: beam 5, or temperature 0.8, top_p 0.9, seed 0."""
        return ", ".join(f"{name.removesuffix('_size')} {value}" for name, value in self._how_decoded().items())


def evaluate(
    translator: Translator,
    data: EvaluationSet,
    options: DecodingOptions,
    *,
    baseline: Sequence[str] | None = None,
    after_batch: Callable[[int], None] = lambda sentences: None,
) -> Evaluation:
    """Translates the sources and scores the translations; without case if the model writes lower case.

    Of contrast pairs it counts those that are right, and of these the ones in which hiding the deciding word turns a
    translation to the other reading.

    Args:
      baseline: another system's translations of the sources, to compare with.
    """
    before = time.monotonic()
    translator.warm_up(data.sources, options)
    started = time.monotonic()
    translations = [line.text for line in translator.translate(data.sources, options, after_batch=after_batch)]
    seconds = time.monotonic() - started
    lowercase, references = translator.tokenizer.lowercase, data.references
    pairs = right = flips = published = None
    if data.find_readings:
        fold = str.casefold if lowercase else str
        folded = [fold(line) for line in translations], [fold(line) for line in references]
        pairs, right = contrast_pairs(*folded)
        flips = contrast_flips(translator, data.sources, *folded, data.find_readings, options)
    if data.multi30k:
        published = score_published(translations, references, language=data.multi30k[0])
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
        published=published,
    )


def sample_indices(count: int, most: int) -> Sequence[int]:
    """At most so many of `count` lines to show, evenly spaced, the same every time."""
    return range(0, count, max(1, count // most))[:most]
