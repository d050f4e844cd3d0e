"""Packs pairs into rows: a window of draws, some of them augmented, is packed by sentence length.

A window is a function of (corpora, seed, window number) and does not depend on earlier windows. Therefore any process
can make any window, and a position in the data is two integers: a window and a row in it.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lingua_flax.data.augmented_pairs import AugmentedPairs, Ids
from lingua_flax.data.draw_order import Drawn, Draws, random_words
from lingua_flax.data.tokenized_pairs import TokenizedPairs

FlatIds = tuple[np.ndarray, np.ndarray]  # the concatenated source ids and the concatenated target ids of a corpus
# Draws in a window, at most. On Multi30k with rows of 64, the longer side is filled to 97.9% with windows of 2,048
# draws, and to 98.1% with 8,192 or 16,384. Larger windows also delay a resumed run, which has to make the current one
# again.
WINDOW = 8192


class Side(NamedTuple):
    """Where each sentence of one side begins in the flat ids and in its row, and its tokens, [pairs] int64 each."""

    starts: np.ndarray
    lengths: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True)
class Window:
    """Planned rows; arrays over pairs are in the order of the rows.

    Attributes:
      row_starts: [rows + 1]; row r holds the pairs row_starts[r] to row_starts[r + 1] - 1.
      corpora: [pairs], the number of each pair's corpus, or the number of corpora if its tokens are in `ids`.
      segments: [pairs], the number of each pair in its row, from 1.
      tokens: [rows], the number of tokens in each row, both sides together.
      source, target: where the tokens of each pair are read from and at which column they are placed.
      ids: flat source and target ids of the pairs whose tokens are not those in the corpora; None if there are none.
    """

    row_starts: np.ndarray
    corpora: np.ndarray
    segments: np.ndarray
    tokens: np.ndarray
    source: Side
    target: Side
    ids: FlatIds | None = None

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.row_starts) - 1


@dataclass(frozen=True)
class Planner:
    """Makes windows by number; picklable, since the corpora are files. No sentence is longer than `row_length`.

    The seed determines the order of pairs and rows, and their variants if there is an AugmentedPairs for each corpus.
    """

    corpora: Sequence[TokenizedPairs]
    weights: Sequence[float]
    row_length: int
    seed: int
    augmented: Sequence[AugmentedPairs] = ()

    @functools.cached_property
    def draws(self) -> Draws:
        """The endless sequence of pairs that is divided into windows."""
        return Draws([len(corpus) for corpus in self.corpora], self.weights, self.seed)

    @property
    def windows_per_epoch(self) -> int:
        """The number of windows into which an epoch is divided: rows are not shuffled across its end."""
        return -(-len(self.draws) // WINDOW)

    @property
    def samples(self) -> bool:
        """Whether segmentations are sampled, which takes far longer than packing."""
        return any(corpus.samplers for corpus in self.augmented)

    def window(self, number: int) -> Window:
        """Returns the window with this number, counted from 0."""
        epoch, part = divmod(number, self.windows_per_epoch)
        begin, end = (at * len(self.draws) // self.windows_per_epoch for at in (part, part + 1))
        drawn = self.draws[epoch * len(self.draws) + np.arange(begin, end)]
        starts, lengths = self._locate_sentences(drawn)
        corpora, ids = self._vary(drawn, starts, lengths) if self.augmented else (drawn.corpora, None)
        rows = assign_rows(lengths[0], lengths[1], self.row_length)
        count = int(rows.max()) + 1
        # assign_rows orders rows by their longest sentence; they are shuffled so that a batch mixes lengths.
        permutation = np.argsort(np.argsort(random_words(self.seed, number, np.arange(count)), kind="stable"))
        rows = permutation[rows]
        return lay_out_rows(rows, starts, lengths, corpora, ids)

    def _locate_sentences(self, drawn: Drawn) -> tuple[np.ndarray, np.ndarray]:
        """Returns starts and lengths, [2, pairs] each, of the sentences in the ids of the corpora."""
        starts, lengths = np.empty((2, 2, len(drawn.pairs)), np.int64)
        for number, corpus in enumerate(self.corpora):
            selected = np.flatnonzero(drawn.corpora == number)
            positions = corpus.positions(drawn.pairs[selected])
            for side, sentences in enumerate((corpus.source, corpus.target)):
                starts[side, selected] = sentences.starts(positions)
                lengths[side, selected] = sentences.lengths(positions)
        return starts, lengths

    def _vary(self, drawn: Drawn, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, FlatIds]:
        """Replaces starts and lengths of augmented pairs by those in new ids; returns corpora as in Window, and ids."""
        corpora, keys = drawn.corpora.copy(), random_words(self.seed, *drawn)
        changed, sources, targets = [np.arange(0)], Ids(), Ids()
        for number, corpus in enumerate(self.augmented):
            selected = np.flatnonzero(drawn.corpora == number)
            draws, *ids = corpus.draw(drawn.pairs[selected], keys[selected])
            changed.append(selected[draws])
            sources, targets = sources + ids[0], targets + ids[1]
        indices = np.concatenate(changed)
        corpora[indices] = len(self.corpora)
        lengths[:, indices] = [[len(sentence) for sentence in side] for side in (sources, targets)]
        starts[:, indices] = np.cumsum(lengths[:, indices], axis=1) - lengths[:, indices]
        source, target = (np.fromiter(itertools.chain.from_iterable(side), np.int32) for side in (sources, targets))
        return corpora, (source, target)


def lay_out_rows(
    rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray, corpora: np.ndarray, ids: FlatIds | None = None
) -> Window:
    """Returns the window with each pair in a given row, none of which may be empty; starts and lengths: [2, pairs]."""
    order = np.argsort(rows, kind="stable")
    row_starts = np.searchsorted(rows[order], np.arange(int(rows.max()) + 2))
    first_in_row = np.repeat(row_starts[:-1], np.diff(row_starts))  # for each pair, the first pair of its row
    starts, lengths = starts[:, order], lengths[:, order]
    before = np.cumsum(lengths, axis=1) - lengths
    source, target = map(Side, starts, lengths, before - before[:, first_in_row])
    segments = np.arange(len(order)) - first_in_row + 1
    tokens = np.add.reduceat(source.lengths + target.lengths, row_starts[:-1])
    return Window(row_starts, corpora[order], segments, tokens, source, target, ids)


def assign_rows(source_lengths: np.ndarray, target_lengths: np.ndarray, row_length: int) -> np.ndarray:
    """Returns the row number of each pair, [pairs] int64, such that neither side of a row exceeds row_length.

    Best-fit decreasing bin packing (Johnson 1973), for two sides: pairs are sorted by the length of their longer
    sentence, longest first. Each goes into the row that it leaves with the least free space on the side that has more
    tokens in total; among equals, into the row that was filled last.
    """
    longer, other = source_lengths, target_lengths
    if longer.sum() < other.sum():
        longer, other = other, longer
    order = np.argsort(-np.maximum(longer, other), kind="stable")
    rows_by_free: list[list[int]] = [[] for _ in range(row_length + 1)]  # by free space on the longer side
    free_on_other: list[int] = []  # by row
    nonempty = 0  # bit f is set if rows_by_free[f] is not empty
    assigned = []
    for length, other_length in zip(longer[order].tolist(), other[order].tolist(), strict=True):
        candidates = nonempty >> length
        row = None
        while candidates and row is None:  # least free space first; the first candidate nearly always has room
            left = (candidates & -candidates).bit_length() - 1
            candidates &= candidates - 1
            row = _pop_fitting(rows_by_free[length + left], free_on_other, other_length)
        if row is None:
            row, left = len(free_on_other), row_length - length
            free_on_other.append(row_length)
        elif not rows_by_free[length + left]:
            nonempty &= ~(1 << (length + left))
        free_on_other[row] -= other_length
        rows_by_free[left].append(row)
        nonempty |= 1 << left
        assigned.append(row)
    rows = np.empty(len(order), np.int64)
    rows[order] = assigned
    return rows


def _pop_fitting(rows: list[int], free: Sequence[int], length: int) -> int | None:
    """Removes and returns the last of the rows with at least `length` free, or returns None if there is none."""
    for index in range(len(rows) - 1, -1, -1):
        if free[rows[index]] >= length:
            return rows.pop(index)
    return None
