"""The training corpora of a run: the corpus of [data], and those of [[data.mixture]], which add training pairs."""

import bisect
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.corpus import Corpus, Pair, PairSource
from lingua_flax.data.tokenizer import MIXTURE_TAG, Tokenizer, language_tag
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TEXT_FILES, DataConfig, MixtureConfig


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus to train on; its share of the pairs drawn is in proportion to the weights of all corpora.

    Each of its sources begins with the `tags`. `prefix` begins a message about it: "" if there is no other corpus.
    """

    corpus: Corpus
    weight: float
    tags: tuple[str, ...]
    prefix: str

    @property
    def pairs(self) -> PairSource:
        """The training pairs."""
        return self.corpus.split("train")

    def tagged(self, tokenizer: Tokenizer) -> Tokenizer:
        """Returns a tokenizer with the tags; raises UserError if it has no such tag."""
        return functools.reduce(Tokenizer.with_source_tag, self.tags, tokenizer)


def open_training_corpora(config: DataConfig) -> list[TrainingCorpus]:
    """Opens the corpus of [data], which comes first, and those of its mixture; raises the errors of `open_corpus`."""
    main = open_corpus(config)
    corpora = [_training_corpus("data", main, config, config)]
    for number, entry in enumerate(config.mixture):
        option = f"data.mixture.{number}"
        entry_config = _entry_config(entry, config)
        try:
            corpus = open_corpus(entry_config, train_only=True)
        except UserError as error:
            fields = "|".join(MixtureConfig.model_fields)
            raise UserError(re.sub(rf"\bdata\.(?=(?:{fields})\b)", f"{option}.", str(error))) from error
        if main.held_out and _training_pairs(entry_config, corpus) == _training_pairs(config, main):
            remedy = "choose another corpus"
            if main.is_of_user:
                remedy = f"set {' and '.join(f'data.{split}_source' for split in main.held_out)}"
            fault = f"{option} has the training pairs of data, whose held-out pairs it would train on"
            raise UserError(f"{fault}; {remedy}")
        corpora.append(_training_corpus(option, corpus, entry, config))
    return corpora


def _training_corpus(
    option: str, corpus: Corpus, entry: DataConfig | MixtureConfig, config: DataConfig
) -> TrainingCorpus:
    prefix = f"{option}, {corpus.name} {corpus.source_language}-{corpus.target_language}: " if config.mixture else ""
    tags = [language_tag(corpus.target_language)] if config.tag_target else []
    if isinstance(entry, MixtureConfig) and entry.tag_source:
        tags.append(MIXTURE_TAG)
    return TrainingCorpus(corpus, entry.weight, tuple(tags), prefix)


def _training_pairs(config: DataConfig, corpus: Corpus) -> object:
    """Returns what identifies the training pairs of a corpus in either direction: its files, or name and languages."""
    files = {path.expanduser().resolve() for name, path in config.files.items() if name.startswith("train_")}
    return files or (corpus.name, {corpus.source_language, corpus.target_language})


def _entry_config(entry: MixtureConfig, config: DataConfig) -> DataConfig:
    options = {name: value for name, value in entry if value is not None and name not in ("weight", "tag_source")}
    languages = {"source_language": config.source_language, "target_language": config.target_language}
    if entry.name == config.name == "text" and not entry.train_source and "{" in str(config.train_source):
        options |= {name: getattr(config, name) for name in TEXT_FILES}
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
