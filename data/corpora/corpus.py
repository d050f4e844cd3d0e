"""What every corpus is to the rest of the program: named splits of (source, target) strings, read by position."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from host.errors import UserError
from options.schema import DataConfig


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class PairSource(Protocol):
    """Pairs that lie anywhere, memory or disk, read one at a time in any order or all of them from the first on."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pair: ...

    def __iter__(self) -> Iterator[Pair]: ...


class Readings(NamedTuple):
    """An ambiguous source word in all its forms, and what each of its two senses looks like in a translation."""

    word: re.Pattern[str]
    senses: tuple[re.Pattern[str], re.Pattern[str]]

    def of(self, translation: str) -> int | None:
        """The sense that a translation has chosen, 0 or 1; None if it shows neither or both."""
        shown = [pattern.search(translation) is not None for pattern in self.senses]
        return shown.index(True) if sum(shown) == 1 else None


# The two sources and the two references of a contrast pair -> its ambiguous word and the sense of each reference, or
# None if these are not known.
FindReadings = Callable[[tuple[str, str], tuple[str, str]], tuple[Readings, tuple[int, int]] | None]


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus."""

    name: str
    source_language: str
    target_language: str
    fingerprint: str
    """SHA-256, in hex, of the languages and the training pairs in their order, and of nothing else."""
    splits: Mapping[str, PairSource]
    """In this order: train, validation, test, others; a corpus of a few sentences may lack validation and test."""
    notes: tuple[str, ...] = ()
    """What the user should be told, such as what was held out: one sentence each."""
    find_readings: FindReadings | None = None
    """Given if lines 2i and 2i + 1 of the split "contrast" are a contrast pair."""

    def split(self, name: str) -> PairSource:
        """Return the split of that name.

        Raises:
            UserError: the corpus has no such split.
        """
        if name not in self.splits:
            raise UserError(f'the corpus {self.name} has no split "{name}"; it has {", ".join(self.splits)}')
        return self.splits[name]


def different_languages(config: DataConfig) -> tuple[str, str]:
    """Return source and target language.

    Raises:
        UserError: they are the same.
    """
    if config.source_language == config.target_language:
        raise UserError(f'data.target_language: it is the source language, "{config.source_language}"; choose another')
    return config.source_language, config.target_language
