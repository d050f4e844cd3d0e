"""The training corpora of a run: the corpus of [data], and those of [[data.mixture]], which add training pairs."""

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.corpus import Corpus, Pair, PairSource
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig, MixtureConfig


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus to train on, and the config section that specifies it, such as data or data.mixture.0.

    Its share of the pairs drawn is in proportion to the weights of all corpora; `tag_source` stands for MIXTURE_TAG.
    """

    option: str
    corpus: Corpus
    weight: float
    tag_source: bool = False

    @property
    def pairs(self) -> PairSource:
        """The training pairs."""
        return self.corpus.split("train")


def open_training_corpora(config: DataConfig) -> list[TrainingCorpus]:
    """Opens the corpus of [data], which comes first, and those of its mixture; raises the errors of `open_corpus`."""
    corpora = [TrainingCorpus("data", open_corpus(config), config.weight)]
    for number, entry in enumerate(config.mixture):
        option = f"data.mixture.{number}"
        entry_config = _entry_config(entry, config)
        try:
            corpus = open_corpus(entry_config, train_only=True)
        except UserError as error:
            fields = "|".join(MixtureConfig.model_fields)
            raise UserError(re.sub(rf"\bdata\.(?=(?:{fields})\b)", f"{option}.", str(error))) from error
        if _train_files(entry_config) == _train_files(config):
            _check_held_out(option, corpus, corpora[0].corpus)
        corpora.append(TrainingCorpus(option, corpus, entry.weight, entry.tag_source))
    return corpora


def _check_held_out(option: str, corpus: Corpus, main: Corpus) -> None:
    """Raises UserError if an entry with the same files, if any, would train on pairs that are held out of [data]."""
    languages, others = ({side.source_language, side.target_language} for side in (corpus, main))
    is_same = corpus.name == main.name and (main.name == "text" or languages == others)
    if is_same and main.held_out:
        remedy = "choose another corpus"
        if main.name == "text":
            remedy = f"set {' and '.join(f'data.{split}_source' for split in main.held_out)}"
        raise UserError(f"{option} has the training pairs of data, whose held-out pairs it would train on; {remedy}")


def _train_files(config: DataConfig) -> set[Path]:
    """Returns the training files of a text corpus; a corpus of another kind has none."""
    return {path.expanduser().resolve() for path in (config.train_source, config.train_target) if path}


def _entry_config(entry: MixtureConfig, config: DataConfig) -> DataConfig:
    options = {name: value for name, value in entry if value is not None and name not in ("weight", "tag_source")}
    languages = {"source_language": config.source_language, "target_language": config.target_language}
    return DataConfig(**{**languages, **options, "cache_directory": config.cache_directory})


class JoinedPairs:
    """The concatenated pairs of several sources."""

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
