"""Translating a set of lines and scoring the translations, line by line, against unmodified references."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from lingua_flax.data.corpora.corpus import Corpus, FindReadings
from lingua_flax.data.text_changes import CHANGES, no_final_punctuation
from lingua_flax.evaluation.bleu import Comparison, Scores, compare, score
from lingua_flax.evaluation.contrast import ContrastCounts, count_contrast
from lingua_flax.evaluation.multi30k_protocol import PublishedScore, score_published
from lingua_flax.host.terminal import progress_bar
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Lines to translate and their references, with a title for the printed table.

    Attributes:
      more_references: other translations of all the sources, with which translations are compared, too.
      find_readings: finds the readings of a contrast pair; given if lines 2i and 2i + 1 form such pairs.
      multi30k: target language and split if the lines are from Multi30k, which are also scored with its published
        protocol.
    """

    title: str
    sources: Sequence[str]
    references: Sequence[str]
    find_readings: FindReadings | None = None
    multi30k: tuple[str, str] | None = None
    more_references: Sequence[Sequence[str]] = ()

    @classmethod
    def from_split(cls, corpus: Corpus, split: str) -> EvaluationSet:
        """Returns a split of a corpus as an evaluation set; raises UserError if the corpus has no such split."""
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
    """Translations, their scores, and how they were obtained.

    Attributes:
      decoding: how the translations were decoded.
      seconds: decoding time, without compilation.
      contrast: counts of the contrast pairs.
      comparison: comparison with a baseline.
      published: score under the published protocol of Multi30k.
    """

    translations: tuple[str, ...]
    scores: Scores
    checkpoint_step: int
    decoding: DecodingOptions
    seconds: float
    compile_seconds: float
    contrast: ContrastCounts | None = None
    comparison: Comparison | None = None
    published: PublishedScore | None = None

    def as_json(self) -> dict[str, float | int | str]:
        """Returns one flat JSON object without the values that were not computed."""
        numbers = {
            "checkpoint_step": self.checkpoint_step,
            **self._decoding_settings(),
            "seconds": self.seconds,
            "sentences_per_second": len(self.translations) / self.seconds,
            "compile_seconds": self.compile_seconds,
        }
        scores, published, contrast, comparison = (
            dataclasses.asdict(part) if part else {}
            for part in (self.scores, self.published, self.contrast, self.comparison)
        )
        values = scores | published | numbers | contrast | comparison
        return {name: value for name, value in values.items() if value is not None}

    def _decoding_settings(self) -> dict[str, float | int]:
        names = ("temperature", "top_k", "top_p", "seed") if self.decoding.temperature else ("beam_size",)
        return {name: getattr(self.decoding, name) for name in names if getattr(self.decoding, name) is not None}

    def decoding_summary(self) -> str:
        """Returns the decoding settings as text, such as "beam 5" or "temperature 0.8, top_p 0.9, seed 0"."""
        return ", ".join(f"{name.removesuffix('_size')} {value}" for name, value in self._decoding_settings().items())


def evaluate(
    translator: Translator,
    data: EvaluationSet,
    options: DecodingOptions,
    *,
    tokenize: str = "13a",
    baseline: Sequence[str] | None = None,
    with_ter: bool = False,
    after_batch: Callable[[int], None] = lambda sentences: None,
) -> Evaluation:
    """Translates the sources and scores the translations, ignoring case if the model's output is lower case.

    For contrast pairs, also counts the pairs that are right, and among them those in which hiding the deciding word
    changes a translation to the other reading.

    Args:
      tokenize: sacreBLEU's tokenizer for BLEU.
      baseline: another system's translations of the sources, to compare with.
      after_batch: as for Translator.translate.
    """
    compile_started = time.monotonic()
    translator.warm_up(data.sources, options)
    started = time.monotonic()
    translations = [
        line.text for line in translator.translate_sentences(data.sources, options, after_batch=after_batch)
    ]
    seconds = time.monotonic() - started
    lowercase, references, more = translator.tokenizer.lowercase, data.references, data.more_references
    contrast = published = comparison = None
    if data.find_readings:
        normalize = str.casefold if lowercase else str
        normalized = [normalize(line) for line in translations], [normalize(line) for line in references]
        contrast = count_contrast(translator, data.sources, *normalized, data.find_readings, options)
    if data.multi30k:
        published = score_published(translations, references, language=data.multi30k[0])
    if baseline is not None:
        comparison = compare(translations, baseline, references, *more, tokenize=tokenize, lowercase=lowercase)
    return Evaluation(
        translations=tuple(translations),
        scores=score(translations, references, *more, tokenize=tokenize, lowercase=lowercase, with_ter=with_ter),
        checkpoint_step=translator.step,
        decoding=options,
        seconds=seconds,
        compile_seconds=started - compile_started,
        contrast=contrast,
        comparison=comparison,
        published=published,
    )


def perturbed_scores(
    translator: Translator, data: EvaluationSet, options: DecodingOptions, tokenize: str, untouched: Sequence[str]
) -> dict[str, Scores]:
    """Returns the scores of the given translations of the untouched sources, and of those with each of the CHANGES.

    All are compared with the same references, without regard to case and final punctuation: whether these should follow
    the source is a matter of taste, and the scores differ only by what else is lost.
    """
    references = [list(map(no_final_punctuation, each)) for each in (data.references, *data.more_references)]
    translations = {"untouched": untouched}
    with progress_bar(len(CHANGES) * len(data.sources), "sentences") as advance:
        for name, change in CHANGES.items():
            lines = translator.translate_sentences(list(map(change, data.sources)), options, after_batch=advance)
            translations[name] = [line.text for line in lines]
    return {
        name: score(list(map(no_final_punctuation, texts)), *references, tokenize=tokenize, lowercase=True)
        for name, texts in translations.items()
    }


def sample_indices(count: int, limit: int) -> Sequence[int]:
    """Returns up to `limit` evenly spaced indices of `count` lines, always the same ones."""
    return range(0, count, max(1, count // limit))[:limit]
