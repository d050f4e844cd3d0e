"""All corpora of a run: that of [data], and those of [[data.mixture]], which add training pairs."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from data.corpora import open_corpus
from data.corpora.corpus import Corpus, Pair, PairSource
from host.errors import UserError
from options.schema import DataConfig, MixtureConfig


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus to train on: the option that names it (data or data.mixture.0), and its weight among the others."""

    option: str
    corpus: Corpus
    weight: float

    @property
    def pairs(self) -> PairSource:
        """Its training pairs."""
        return self.corpus.split("train")


def open_training_corpora(config: DataConfig) -> list[TrainingCorpus]:
    """Open the corpus of [data], which comes first, and those of its mixture.

    Raises:
        UserError: one cannot be opened; options of a mixture's entry are named as such.
        RunError: the disk is full.
    """
    corpora = [TrainingCorpus("data", open_corpus(config), config.weight)]
    for number, entry in enumerate(config.mixture):
        option = f"data.mixture.{number}"
        try:
            corpus = open_corpus(_config_of(entry, config), train_only=True)
        except UserError as error:
            fields = "|".join(MixtureConfig.model_fields)
            raise UserError(re.sub(rf"\bdata\.(?=(?:{fields})\b)", f"{option}.", str(error))) from error
        corpora.append(TrainingCorpus(option, corpus, entry.weight))
    return corpora


def _config_of(entry: MixtureConfig, config: DataConfig) -> DataConfig:
    """The [data] that would name the corpus of an entry."""
    given = {name: value for name, value in entry if value is not None and name != "weight"}
    languages = {"source_language": config.source_language, "target_language": config.target_language}
    return DataConfig(**{**languages, **given, "cache_directory": config.cache_directory})


class JoinedPairs:
    """The pairs of several sources, one after the other."""

    def __init__(self, sources: Sequence[PairSource]) -> None:
        self._sources = sources
        self._ends = list(itertools.accumulate(len(source) for source in sources))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        source = bisect.bisect_right(self._ends, index)
        return self._sources[source][index - (self._ends[source - 1] if source else 0)]

    def __iter__(self) -> Iterator[Pair]:
        return itertools.chain.from_iterable(self._sources)
