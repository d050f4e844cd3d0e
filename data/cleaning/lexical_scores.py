"""How well the words of a pair match, according to word alignments of the corpus with itself.

IBM Model 1 (Brown et al. 1993) is trained in both directions. The score of a pair is the mean over the words of both
sides of log(0.9 * mean probability given a word of the other side / its frequency + 0.1): about -1 if the sides have
nothing to do with each other, and about 2 for a good pair. A word stands for its first letters, so that inflected forms
and compounds share counts, and all rare words are one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import regex

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.glossary import UNSPACED

PREFIX = 5  # letters; on Multi30k, the best of 4, 5, 6 and all
MAX_WORDS = 50  # of a side that are compared: the first ones
MAX_CELLS = 6_000_000  # combinations of a source and a target word to train on: 45,000 captions, 600 MB
ITERATIONS = 5
FOLDS = 10
CHANCE = 0.1
LEAST_FOUND = 0.5  # the share of mismatched pairs that a cut must find
LEAST_MEDIAN = 0.5  # of good pairs; 1 in a corpus of 300, 2 in one of 8,000
MAX_SHARE = 0.6  # of pairs that do not match; where there are more, the others cannot be told
MAX_LOST = 0.005  # the share of all pairs that it may find by mistake
# Marks belong to their letters, as they are the vowels of many scripts. Where words are written without spaces, each
# letter and the next one count as one.
_WORD = regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}\p{{N}}\u200d]--[[{UNSPACED}]--\p{{N}}]]+")
_LETTERS = regex.compile(rf"(?V1)(?:[[{UNSPACED}]&&\p{{L}}]\p{{M}}*){{1,2}}")


class Words(NamedTuple):
    """The distinct words of one side of pairs: hashes or numbers, one pair after the other, and how many each has."""

    ids: np.ndarray
    counts: np.ndarray

    @property
    def pair(self) -> np.ndarray:
        """The index of the pair of each word."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of(self, chosen: np.ndarray) -> Words:
        """Returns the words of some of the pairs."""
        counts = self.counts[chosen]
        starts = np.cumsum(self.counts) - self.counts
        return Words(self.ids[np.repeat(starts[chosen], counts) + _ranges(counts)], counts)


class LexicalModel(NamedTuple):
    """Probabilities of words given a word of the other side; fields with two arrays have one for each side.

    Attributes:
      hashes: of the words that occur in several pairs, sorted; word i has the number i + 1, and all others have 0.
      frequencies: of the words, by number.
      keys: what identifies a source word and a target word, sorted.
      probabilities: of the source word given the target word, and the reverse; 0 if not above the word's frequency.
    """

    hashes: Sequence[np.ndarray]
    frequencies: Sequence[np.ndarray]
    keys: np.ndarray
    probabilities: Sequence[np.ndarray]

    def score(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Returns the score of each pair, which the model was not trained on."""
        hashed = zip(self.hashes, _hashed_words(pairs), strict=True)
        return self.score_words([Words(_found(known, words.ids) + 1, words.counts) for known, words in hashed])

    def score_words(self, words: Sequence[Words]) -> np.ndarray:
        """Returns the score of each pair, from the numbers of the words of both sides."""
        at, keys = _cells(words, len(self.frequencies[1]))
        entries = _found(self.keys, keys)
        scores = np.zeros(len(words[0].counts))
        for side, (own, other) in enumerate((words, words[::-1])):
            explained = np.bincount(at[side], np.append(self.probabilities[side], 0)[entries], len(own.ids))
            ratio = explained / np.maximum(other.counts, 1)[own.pair] / self.frequencies[side][own.ids]
            logarithms = np.log((1 - CHANCE) * ratio + CHANCE)
            scores += np.bincount(own.pair, logarithms, len(scores)) / np.maximum(own.counts, 1) / 2
        return scores


def train(pairs: Sequence[Pair]) -> tuple[LexicalModel, np.ndarray, np.ndarray, np.ndarray]:
    """Trains a model on every n-th pair, as many as MAX_CELLS allows.

    Returns the model, the indices of these pairs, their scores, and scores of mismatched sides. A pair must not vouch
    for itself, so both kinds are scored without the counts of their tenth of the pairs.
    """
    hashed = _hashed_words(pairs)
    trained = np.arange(0, len(pairs), 1 + int(hashed[0].counts @ hashed[1].counts) // MAX_CELLS)
    hashes, frequencies, words = zip(*(_numbered(side.of(trained)) for side in hashed), strict=True)
    at, keys = _cells(words, len(frequencies[1]))
    keys, entry = np.unique(keys, return_inverse=True)
    number = np.divmod(keys, len(frequencies[1]))
    alignments = [_align(entry, number[1 - side], at[side]) for side in range(2)]
    fold = (words[0].pair % FOLDS)[at[0]]

    def model(kept: np.ndarray) -> LexicalModel:
        tables = []
        for side in range(2):
            counts = np.bincount(entry[kept], alignments[side][kept], len(keys))
            p = counts / (np.bincount(number[1 - side], counts) + 0.5)[number[1 - side]]
            tables.append(np.where(p > frequencies[side][number[side]], p, 0).astype(np.float32))
        known = tables[0] + tables[1] > 0
        return LexicalModel(hashes, frequencies, keys[known], [table[known] for table in tables])

    scores, mismatched = np.zeros(len(trained)), np.zeros(len(trained))
    for number_of_fold in range(FOLDS):
        chosen = np.arange(number_of_fold, len(trained), FOLDS)
        without = model(fold != number_of_fold)
        sources, targets = words[0].of(chosen), words[1].of(chosen)
        scores[chosen] = without.score_words([sources, targets])
        mismatched[chosen] = without.score_words([sources, words[1].of(np.roll(chosen, 1))])
    return model(np.ones(len(entry), bool)), trained, scores, mismatched


def find_cut(scores: np.ndarray, mismatched: np.ndarray) -> float | None:
    """Returns the score below which pairs do not match, or None if the corpus does not tell.

    It is a high quantile of the mismatched pairs, but so low that not more than MAX_LOST of all pairs are good ones
    below it: as many as are as far above the median, around which scores of good pairs are symmetric (measured for
    German and French, 300 to 29,000 pairs, with 0 to 50% of random targets).
    """
    share = 2 * np.mean(scores < np.median(mismatched))  # about that of pairs that do not match
    if share > MAX_SHARE or (median := np.quantile(scores, (1 + share) / 2)) < LEAST_MEDIAN:
        return None
    cuts = np.quantile(mismatched, np.arange(LEAST_FOUND, 1.0, 0.005))
    possible = cuts[[np.mean(scores >= 2 * median - cut) <= MAX_LOST for cut in cuts]]
    return float(possible[-1]) if len(possible) else None


def _hashed_words(pairs: Sequence[Pair]) -> list[Words]:
    """Returns the words of both sides, by the CRC of their first letters."""
    sides = []
    for side in range(2):
        folded = (pair[side].casefold() for pair in pairs)
        found = (_WORD.findall(text) + _LETTERS.findall(text, overlapped=True) for text in folded)
        texts = [list(dict.fromkeys(word[:PREFIX] for word in words))[:MAX_WORDS] for words in found]
        hashes = np.fromiter((zlib.crc32(word.encode()) for text in texts for word in text), np.int64)
        sides.append(Words(hashes, np.fromiter(map(len, texts), np.int64, len(texts))))
    return sides


def _numbered(words: Words) -> tuple[np.ndarray, np.ndarray, Words]:
    """Returns the hashes and the frequencies of a vocabulary, and the numbers of the words."""
    hashes, counts = np.unique(words.ids, return_counts=True)
    several = counts > 1
    numbered = 1.0 + np.concatenate([[counts[~several].sum()], counts[several]])
    numbers = _found(hashes[several], words.ids) + 1
    return hashes[several], numbered / numbered.sum(), Words(numbers, words.counts)


def _align(entry: np.ndarray, given: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns how likely each cell is an alignment, by expectation maximization from uniform probabilities."""
    p = np.ones(len(given))
    for _ in range(ITERATIONS):
        likely = p[entry]
        likely /= np.bincount(at, likely)[at]
        counts = np.bincount(entry, likely, len(given))
        p = counts / np.bincount(given, counts)[given]
    return likely


def _cells(words: Sequence[Words], vocabulary: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the combinations of a source and a target word of a pair: the indices of both words, and a key."""
    source, target = words
    counts = source.counts * target.counts
    pair = np.repeat(np.arange(len(counts)), counts)
    places = np.divmod(_ranges(counts), target.counts[pair])
    at = [(np.cumsum(side.counts) - side.counts)[pair] + place for side, place in zip(words, places, strict=True)]
    return at, source.ids[at[0]] * vocabulary + target.ids[at[1]]


def _ranges(counts: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ... count - 1 for each of the counts."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _found(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the index of each value among sorted known ones, and -1 if it is not there."""
    places = np.searchsorted(known, values)
    return np.where(np.append(known, -1)[places] == values, places, -1)
