"""Which training pair is drawn when: a function of (corpora, seed, number of the draw), with random access.

Everything is integer arithmetic modulo 2**64, so that no version of NumPy and no processor gives another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6  # of the Feistel network; four are the least that mixes both halves
_WEIGHT_UNIT = 1000  # weights count to three decimals


def random_words(*coordinates: int | np.ndarray) -> np.ndarray:
    """Random uint64, a function of the coordinates, which are broadcast together: SplitMix64 (Steele et al. 2014),
    once for each coordinate."""
    words = np.zeros(1, np.uint64)
    for coordinate in coordinates:
        words = _mixed(words + _GOLDEN + np.asarray(coordinate).astype(np.uint64))
    return words


def _mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def shuffled(indices: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Where permutations of range(size) put each index, int64.

    A Feistel network permutes the next power of four; what it puts outside the range goes through it again, until it
    is inside (Black and Rogaway 2002, cycle walking).

    Args:
      indices: [n], each below `size`.
      keys: [n] uint64, which of the permutations is meant for each.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    found = np.asarray(indices).astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        left, right = found[outside] >> half, found[outside] & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (random_words(keys[outside], number, right) & mask)
        found[outside] = (left << half) | right
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


class Drawn(NamedTuple):
    """Draws: of each the number of its corpus, the epoch of that, and the pair's index in it; [n] int64 each."""

    corpora: np.ndarray
    epochs: np.ndarray
    pairs: np.ndarray


class Draws:
    """An endless sequence of pairs, drawn from several corpora in proportion to their weights.

    The corpora take turns in a fixed order, evenly spread. Each is shuffled and repeated by itself, so that in each of
    its epochs every pair comes once; the order of the first corpus is the one that it has alone.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int):
        """Args: sizes: the number of pairs of each corpus, at least one; weights: to three decimals."""
        self._sizes = sizes
        self._seed = seed
        shares = [max(1, round(weight * _WEIGHT_UNIT)) for weight in weights]
        shares = [share // math.gcd(*shares) for share in shares]
        self._shares = np.array(shares, np.int64)
        # Corpora in a cycle of sum(shares) draws: the j-th draw of a corpus with share m stands at (j + 1/2) / m of it.
        total = sum(shares)
        places = np.concatenate([(2 * np.arange(share) + 1) * total // (2 * share) for share in shares])
        order = np.argsort(places, kind="stable")
        self._cycle = np.repeat(np.arange(len(shares)), shares)[order]
        self._turns = np.concatenate([np.arange(share) for share in shares])[order]

    def __len__(self) -> int:
        """The number of all pairs, which is the length of an epoch: it may have some of them twice and others never."""
        return sum(self._sizes)

    def __getitem__(self, numbers: np.ndarray) -> Drawn:
        """The draws with these numbers, [n] int64, counted from 0."""
        cycles, places = np.divmod(numbers, len(self._cycle))
        corpora = self._cycle[places]
        nth = cycles * self._shares[corpora] + self._turns[places]
        epochs, pairs = np.empty_like(nth), np.empty_like(nth)
        for corpus, size in enumerate(self._sizes):
            own = corpora == corpus
            epochs[own], index = np.divmod(nth[own], size)
            pairs[own] = shuffled(index, size, random_words(self._seed, corpus, epochs[own]))
        return Drawn(corpora, epochs, pairs)
