"""The interface of every corpus: named splits of (source, target) strings, read by position."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class PairSource(Protocol):
    """Pairs in memory or on disk, read individually in any order, or all of them in sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pair: ...

    def __iter__(self) -> Iterator[Pair]: ...


class Readings(NamedTuple):
    """Patterns for all forms of an ambiguous source word, and for the translations that express each of its senses."""

    name: str
    word: re.Pattern[str]
    senses: tuple[re.Pattern[str], re.Pattern[str]]

    def of(self, translation: str) -> int | None:
        """Returns the sense that a translation expresses, 0 or 1; None if it expresses neither or both."""
        matches = [pattern.search(translation) is not None for pattern in self.senses]
        return matches.index(True) if sum(matches) == 1 else None


# (two sources, two references) of a contrast pair -> (the readings of its ambiguous word, the sense of each reference),
# or None if they are not known.
FindReadings = Callable[[tuple[str, str], tuple[str, str]], tuple[Readings, tuple[int, int]] | None]


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus.

    Attributes:
      digest: SHA-256, in hex, of the languages and the training pairs in order, and of nothing else.
      splits: in the order train, validation, test, others; very small corpora may lack validation and test.
      notes: what the user should know, such as what was held out; one sentence each.
      held_out: the splits whose pairs were held out of the given training pairs.
      held_out_by_target: whether their targets are the sources that another run, in the other direction, held out.
      find_readings: set if lines 2i and 2i + 1 of the split "contrast" are a contrast pair.
      is_of_user: whether its files are the user's own, so that they may have any fault, and others can be given.
    """

    name: str
    source_language: str
    target_language: str
    digest: str
    splits: Mapping[str, PairSource]
    notes: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    held_out_by_target: bool = False
    find_readings: FindReadings | None = None
    is_of_user: bool = False

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of source and target."""
        return self.source_language, self.target_language

    def split(self, name: str) -> PairSource:
        """Returns the split with this name; raises UserError if the corpus has none."""
        if name not in self.splits:
            raise UserError(f'the corpus {self.name} has no split "{name}"; it has {", ".join(self.splits)}')
        return self.splits[name]


def different_languages(config: DataConfig) -> tuple[str, str]:
    """Returns the source and the target language; raises UserError if they are the same."""
    if config.source_language == config.target_language:
        raise UserError(f'data.target_language: "{config.source_language}" is the source language; choose another')
    return config.source_language, config.target_language
