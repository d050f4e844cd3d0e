"""Which pairs share a row: windows of draws, segmented where segmentations are sampled, and packed by their lengths.

A window is a function of (corpora, seed, its number). Nothing of the one before is needed, so that any process can
make any window, and a position in the data is two integers: a window and a row in it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.draw_order import Drawn, Draws, random_words
from data.subword_sampling import SampledPairs
from data.tokenized_pairs import TokenizedPairs

# Draws in a window. Multi30k with rows of 64 fills the longer side to 97.9% with 2,048, 98.1% with 8,192 and with
# 16,384; a resumed run makes one window again, and segmenting so many pairs anew takes about a second.
WINDOW = 8192

TrainingPairs = TokenizedPairs | SampledPairs


class Side(NamedTuple):
    """One side of a window's sentences, [pairs] int64 each: where each begins in the ids of its corpus, its length,
    and the column of its row at which it is put."""

    starts: np.ndarray
    lengths: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True)
class Window:
    """Planned rows; everything about pairs is in the order in which they stand in the rows.

    Attributes:
      row_starts: [rows + 1]; the pairs of row r are row_starts[r] to row_starts[r + 1].
      corpora: [pairs], the number of each pair's corpus.
      segments: [pairs], the number of each pair in its row, from 1.
      tokens: [rows], the number of tokens of each row, both sides.
      source, target: where their tokens are and where they go.
      ids: flat source and target ids, where they were sampled; else they are those of the corpora.
    """

    row_starts: np.ndarray
    corpora: np.ndarray
    segments: np.ndarray
    tokens: np.ndarray
    source: Side
    target: Side
    ids: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        """The number of its rows."""
        return len(self.row_starts) - 1


@dataclass(frozen=True)
class Planner:
    """Makes windows by their numbers; can be pickled, since the corpora are files.

    Attributes:
      corpora: all tokenized, or all sampled; no sentence longer than row_length.
      weights: the share of each among the pairs drawn, in proportion.
      seed: of the order of pairs and rows, and of sampled segmentations.
    """

    corpora: Sequence[TrainingPairs]
    weights: Sequence[float]
    row_length: int
    seed: int

    @functools.cached_property
    def draws(self) -> Draws:
        """The endless sequence of pairs that the windows are cut from."""
        return Draws([len(corpus) for corpus in self.corpora], self.weights, self.seed)

    @property
    def samples(self) -> bool:
        """Whether segmentations are sampled, which takes far longer than planning."""
        return isinstance(self.corpora[0], SampledPairs)

    def window(self, number: int) -> Window:
        """The window of this number, counted from 0."""
        drawn = self.draws[np.arange(number * WINDOW, (number + 1) * WINDOW)]
        starts, lengths, ids = self._sampled(drawn) if self.samples else self._stored(drawn)
        rows = assign_rows(lengths[0], lengths[1], self.row_length)
        count = int(rows.max()) + 1
        # Rows come in the order of their longest sentence: shuffled, so that batches are not of like lengths.
        places = np.empty(count, np.int64)
        places[np.argsort(random_words(self.seed, number, np.arange(count)), kind="stable")] = np.arange(count)
        rows = places[rows]
        order = np.argsort(rows, kind="stable")
        row_starts = np.searchsorted(rows[order], np.arange(count + 1))
        first = np.repeat(row_starts[:-1], np.diff(row_starts))  # of each pair, the first pair of its row
        source, target = (
            Side(start[order], length[order], _before(length[order], first))
            for start, length in zip(starts, lengths, strict=True)
        )
        segments = np.arange(len(order)) - first + 1
        tokens = np.add.reduceat(source.lengths + target.lengths, row_starts[:-1])
        return Window(row_starts, drawn.corpora[order], segments, tokens, source, target, ids)

    def _stored(self, drawn: Drawn) -> tuple[np.ndarray, np.ndarray, None]:
        """Starts and lengths, [2, pairs] each, in the ids of the corpora."""
        starts, lengths = np.empty((2, WINDOW), np.int64), np.empty((2, WINDOW), np.int64)
        for number, corpus in enumerate(self.corpora):
            assert isinstance(corpus, TokenizedPairs)
            own = np.flatnonzero(drawn.corpora == number)
            positions = corpus.positions(drawn.pairs[own])
            for side, sentences in enumerate((corpus.source, corpus.target)):
                starts[side, own], lengths[side, own] = sentences.starts(positions), sentences.lengths(positions)
        return starts, lengths, None

    def _sampled(self, drawn: Drawn) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Starts and lengths, [2, pairs] each, in ids that are sampled here."""
        corpora = [corpus for corpus in self.corpora if isinstance(corpus, SampledPairs)]
        keys = random_words(self.seed, *drawn)
        pairs = [
            corpora[corpus].draw(pair, np.random.Generator(np.random.Philox(key=key)))
            for corpus, pair, key in zip(drawn.corpora.tolist(), drawn.pairs.tolist(), keys.tolist(), strict=True)
        ]
        sides = list(zip(*pairs, strict=True))
        lengths = np.array([[len(sentence) for sentence in side] for side in sides])
        source, target = (np.fromiter(itertools.chain.from_iterable(side), np.int32) for side in sides)
        return np.cumsum(lengths, axis=1) - lengths, lengths, (source, target)


def _before(lengths: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Tokens that stand before each sentence in its row; first: of each, the first sentence of the row."""
    begins = np.cumsum(lengths) - lengths
    return begins - begins[first]


def assign_rows(source_lengths: np.ndarray, target_lengths: np.ndarray, row_length: int) -> np.ndarray:
    """The number of the row that each pair is put into, [pairs] int64, such that neither side exceeds row_length.

    Best fit decreasing (Johnson 1973) with two sides: pairs in the order of their longer side, the longest first, each
    into a row that it fills best on the side that is longer in all; of equal ones, into the one that was filled last.
    Measured: 1 to 2 microseconds a pair.
    """
    longer, other = source_lengths, target_lengths
    if longer.sum() < other.sum():
        longer, other = other, longer
    order = np.argsort(-np.maximum(longer, other), kind="stable")
    rows_with: list[list[int]] = [[] for _ in range(row_length + 1)]  # by what is free on the longer side
    free_on_other: list[int] = []  # by row
    some_with = 0  # bit f is set where rows_with[f] is not empty
    chosen = []
    for length, other_length in zip(longer[order].tolist(), other[order].tolist(), strict=True):
        candidates = some_with >> length
        row = None
        while candidates and row is None:  # from the least that is free; nearly always the first one has room
            left = (candidates & -candidates).bit_length() - 1
            candidates &= candidates - 1
            row = _take(rows_with[length + left], free_on_other, other_length)
        if row is None:
            row, left = len(free_on_other), row_length - length
            free_on_other.append(row_length)
        elif not rows_with[length + left]:
            some_with &= ~(1 << (length + left))
        free_on_other[row] -= other_length
        rows_with[left].append(row)
        some_with |= 1 << left
        chosen.append(row)
    rows = np.empty(len(order), np.int64)
    rows[order] = chosen
    return rows


def _take(rows: list[int], free: Sequence[int], length: int) -> int | None:
    """Removes the newest of the rows that has so much room, and returns it."""
    for index in range(len(rows) - 1, -1, -1):
        if free[rows[index]] >= length:
            return rows.pop(index)
    return None
