"""Determines which training pair is drawn when: a function of (corpora, seed, draw number) with random access.

All arithmetic is on integers modulo 2**64, so the order does not depend on the NumPy version or the processor.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6  # of the Feistel network; at least four are needed to mix both halves
_WEIGHT_UNIT = 1000  # weights are rounded to three decimals


def random_words(*coordinates: int | np.ndarray) -> np.ndarray:
    """Returns random uint64, a function of the coordinates, by SplitMix64 for each of them (Steele et al. 2014)."""
    words = np.zeros(1, np.uint64)
    for coordinate in coordinates:
        words = words + _GOLDEN + np.asarray(coordinate).astype(np.uint64)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words = words ^ (words >> np.uint64(31))
    return words


def permute(indices: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Returns the image of each index, all of them below `size`, under a random permutation of range(size), int64.

    A Feistel network permutes a range whose size is the next power of four; results outside range(size) go through the
    network again until they are inside (cycle walking, Black and Rogaway 2002). `keys` are uint64, one for each index:
    the key of the permutation to apply to it.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    images = np.asarray(indices).astype(np.uint64)
    outside = np.arange(len(images))
    while len(outside):
        left, right = images[outside] >> half, images[outside] & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (random_words(keys[outside], number, right) & mask)
        images[outside] = (left << half) | right
        outside = outside[images[outside] >= size]
    return images.astype(np.int64)


class Drawn(NamedTuple):
    """A sequence of draws, [n] int64 each: the number of the corpus, its epoch, and the index of the pair in it."""

    corpora: np.ndarray
    epochs: np.ndarray
    pairs: np.ndarray


class Draws:
    """An endless sequence of pairs, drawn from several corpora in proportion to their weights.

    The corpora are interleaved evenly, in a fixed cycle. Each is shuffled and repeated independently of the others, so
    each of its epochs contains every pair once. The first corpus is drawn in the order that it has without the others.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int):
        """Computes the cycle of corpora; each has at least one pair, and the weights are rounded to three decimals."""
        self._sizes = sizes
        self._seed = seed
        shares = [max(1, round(weight * _WEIGHT_UNIT)) for weight in weights]
        shares = [share // math.gcd(*shares) for share in shares]
        self._shares = np.array(shares, np.int64)
        # A cycle has sum(shares) draws: draw j of a corpus with share m is placed at (j + 1/2) / m of the cycle.
        total = sum(shares)
        places = np.concatenate([(2 * np.arange(share) + 1) * total // (2 * share) for share in shares])
        order = np.argsort(places, kind="stable")
        self._cycle = np.repeat(np.arange(len(shares)), shares)[order]  # the corpus of each draw of a cycle
        self._draw_in_share = np.concatenate([np.arange(share) for share in shares])[order]  # its j

    def __len__(self) -> int:
        """Returns the number of pairs of all corpora; in so many draws, some may occur twice and others not at all."""
        return sum(self._sizes)

    def __getitem__(self, numbers: np.ndarray) -> Drawn:
        """Returns the draws with these numbers, [n] int64, counted from 0."""
        cycles, offsets = np.divmod(numbers, len(self._cycle))
        corpora = self._cycle[offsets]
        draws_of_corpus = cycles * self._shares[corpora] + self._draw_in_share[offsets]
        epochs, pairs = np.empty_like(draws_of_corpus), np.empty_like(draws_of_corpus)
        for corpus, size in enumerate(self._sizes):
            selected = corpora == corpus
            epochs[selected], index = np.divmod(draws_of_corpus[selected], size)
            pairs[selected] = permute(index, size, random_words(self._seed, corpus, epochs[selected]))
        return Drawn(corpora, epochs, pairs)
