"""Translating a set of lines and scoring the translations, line by line, against unmodified references."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lingua_flax.data.corpora.corpus import Corpus, FindReadings
from lingua_flax.data.text_changes import CHANGES, no_final_punctuation
from lingua_flax.evaluation.bleu import Scores, compare, score
from lingua_flax.evaluation.contrast import count_contrast
from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU
from lingua_flax.host.terminal import progress_bar
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Lines to translate and their references, with a title for the printed table.

    Attributes:
      find_readings: finds the readings of a contrast pair; given if lines 2i and 2i + 1 form such pairs.
      multi30k: target language and split of lines of Multi30k, which are also scored with its published protocol.
      more_references: other translations of all the sources, with which translations are compared, too.
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
    """Translations, their scores, and how they were decoded, in seconds without compilation.

    `further` has the counts of contrast pairs, the published protocol and the comparison with a baseline, by their
    names in JSON.
    """

    translations: tuple[str, ...]
    scores: Scores
    checkpoint_step: int
    decoding: DecodingOptions
    seconds: float
    compile_seconds: float
    further: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Returns one flat JSON object without the values that were not computed."""
        values = dataclasses.asdict(self.scores) | {
            "checkpoint_step": self.checkpoint_step,
            **self._decoding_settings(),
            "seconds": self.seconds,
            "sentences_per_second": len(self.translations) / self.seconds,
            "compile_seconds": self.compile_seconds,
            **self.further,
        }
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

    Counts contrast pairs, too, and compares with a baseline, another system's translations of the sources, if there is
    one. BLEU uses sacreBLEU's tokenizer `tokenize`; `after_batch` is called as by Translator.translate.
    """
    compile_started = time.monotonic()
    translator.warm_up(data.sources, options)
    started = time.monotonic()
    translations = [
        line.text for line in translator.translate_sentences(data.sources, options, after_batch=after_batch)
    ]
    seconds = time.monotonic() - started
    lowercase, references, more = translator.tokenizer.lowercase, data.references, data.more_references
    further: dict[str, Any] = {}
    if data.multi30k:
        published = PublishedBLEU(data.multi30k[0])
        result = published.corpus_score(translations, [references])
        further |= {"published_bleu": result.score, "published_signature": str(published.get_signature())}
        further["published_reference_length"] = result.ref_len
    if data.find_readings:
        normalize = str.casefold if lowercase else str
        normalized = [normalize(line) for line in translations], [normalize(line) for line in references]
        further |= count_contrast(translator, data.sources, *normalized, data.find_readings, options)
    if baseline is not None:
        further |= compare(translations, baseline, references, *more, tokenize=tokenize, lowercase=lowercase)
    return Evaluation(
        tuple(translations),
        score(translations, references, *more, tokenize=tokenize, lowercase=lowercase, with_ter=with_ter),
        checkpoint_step=translator.step,
        decoding=options,
        seconds=seconds,
        compile_seconds=started - compile_started,
        further=further,
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
