"""How well the words of a pair match, according to word alignments of the corpus with itself.

IBM Model 1 (Brown et al. 1993) is trained in both directions. A word is explained by the words of the other side or by
chance, and the score of a pair is the mean over the words of both sides of

    log(0.9 * mean probability given a word of the other side / its frequency + 0.1)

so that a pair whose sides have nothing to do with each other scores about -1, and a good one about 2. A word stands for
its first letters, so that inflected forms and compounds share counts, and all rare words are one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingua_flax.data.corpora.corpus import Pair

PREFIX = 5  # letters; on Multi30k, the best of 4, 5, 6 and all
MAX_WORDS = 50  # of a side that are compared: the first ones
MAX_CELLS = 8_000_000  # pairs of a source and a target word to train on, of 50 bytes each: 60,000 captions
ITERATIONS = 5
FOLDS = 10
CHANCE = 0.1
LEAST_FOUND = 0.9  # the share of mismatched pairs that a cut must find
LEAST_MEDIAN = 0.5  # of good pairs; 0.56 in 300 pairs of which half are wrong, 1 in 300, and 2 in 8,000
MAX_LOST = 0.005  # the share of all pairs that it may find by mistake
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff"  # Thai to Burmese, Khmer, Han, Kana
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


class Words(NamedTuple):
    """The distinct words of some texts, one text after the other.

    Attributes:
      ids: hashes, or numbers in a vocabulary, [words].
      counts: the number of words of each text, [texts].
    """

    ids: np.ndarray
    counts: np.ndarray

    @property
    def text(self) -> np.ndarray:
        """The text of each word, [words]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of(self, chosen: np.ndarray) -> Words:
        """Returns the words of some texts, in their order."""
        starts = np.cumsum(self.counts) - self.counts
        counts = self.counts[chosen]
        return Words(self.ids[np.repeat(starts[chosen], counts) + _ranges(counts)], counts)


class Vocabulary(NamedTuple):
    """The words of one side.

    Attributes:
      hashes: of the words that occur in several texts, sorted; word i has the number i + 1, and all others have 0.
      frequencies: the share of each number, [1 + hashes].
    """

    hashes: np.ndarray
    frequencies: np.ndarray

    @classmethod
    def of(cls, words: Words) -> Vocabulary:
        hashes, counts = np.unique(words.ids, return_counts=True)
        several = counts > 1
        numbered = 1.0 + np.concatenate([[counts[~several].sum()], counts[several]])
        return cls(hashes[several], numbered / numbered.sum())

    def numbered(self, words: Words) -> Words:
        return Words(_found(self.hashes, words.ids) + 1, words.counts)


class Cells(NamedTuple):
    """The combinations of a source word and a target word of the same pair, [cells].

    Attributes:
      source_at, target_at: the index of each word among those of all pairs.
      key: identifies both words.
    """

    source_at: np.ndarray
    target_at: np.ndarray
    key: np.ndarray


class LexicalModel(NamedTuple):
    """Probabilities of words given a word of the other side.

    Attributes:
      keys: those of word pairs, sorted.
      of_target, of_source: the probability of the target word given the source word, and the reverse; 0 if it is not
        above the frequency of the word.
    """

    source: Vocabulary
    target: Vocabulary
    keys: np.ndarray
    of_target: np.ndarray
    of_source: np.ndarray

    def score(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Returns the score of each pair, which the model was not trained on, [pairs]."""
        source, target = word_hashes(pairs)
        return self.score_words(self.source.numbered(source), self.target.numbered(target))

    def score_words(self, source: Words, target: Words) -> np.ndarray:
        cells = _cells(source, target, len(self.target.frequencies))
        entries = _found(self.keys, cells.key)
        of_target, of_source = (np.append(p, 0)[entries] for p in (self.of_target, self.of_source))
        scores = _explained(of_target, cells.target_at, target, source.counts, self.target.frequencies)
        return (scores + _explained(of_source, cells.source_at, source, target.counts, self.source.frequencies)) / 2


def train(pairs: Sequence[Pair]) -> tuple[LexicalModel, np.ndarray, np.ndarray, np.ndarray]:
    """Trains a model on every n-th pair, as many as MAX_CELLS allows.

    Returns the model, the indices of these pairs, their scores, and scores of pairs put together from sides that do not
    match. A pair must not vouch for itself, so both kinds are scored without the counts of their tenth of the pairs.
    """
    source, target = word_hashes(pairs)
    trained = np.arange(0, len(pairs), 1 + int(source.counts @ target.counts) // MAX_CELLS)
    source, target = source.of(trained), target.of(trained)
    vocabularies = Vocabulary.of(source), Vocabulary.of(target)
    source, target = vocabularies[0].numbered(source), vocabularies[1].numbered(target)
    cells = _cells(source, target, len(vocabularies[1].frequencies))
    keys, entry = np.unique(cells.key, return_inverse=True)
    given = np.divmod(keys, len(vocabularies[1].frequencies))
    forward = _posteriors(entry, given[0], cells.target_at)
    backward = _posteriors(entry, given[1], cells.source_at)
    fold = (source.text % FOLDS)[cells.source_at]

    def model(kept: np.ndarray) -> LexicalModel:
        tables = []
        for posterior, words, others in ((forward, given[0], given[1]), (backward, given[1], given[0])):
            counts = np.bincount(entry[kept], posterior[kept], len(keys))
            p = counts / (np.bincount(words, counts) + 0.5)[words]
            frequencies = vocabularies[1 if words is given[0] else 0].frequencies[others]
            tables.append(np.where(p > frequencies, p, 0))
        known = (tables[0] > 0) | (tables[1] > 0)
        return LexicalModel(*vocabularies, keys[known], tables[0][known], tables[1][known])

    scores, mismatched = np.zeros(len(trained)), np.zeros(len(trained))
    for number in range(FOLDS):
        chosen = np.arange(number, len(trained), FOLDS)
        without, sources = model(fold != number), source.of(chosen)
        scores[chosen] = without.score_words(sources, target.of(chosen))
        mismatched[chosen] = without.score_words(sources, target.of(np.roll(chosen, 1)))
    return model(np.ones(len(entry), bool)), trained, scores, mismatched


def find_cut(scores: np.ndarray, mismatched: np.ndarray) -> float | None:
    """Returns the score below which pairs do not match, or None if the corpus does not tell.

    It is a high quantile of the mismatched pairs, but so low that not more than MAX_LOST of all pairs are good ones
    below it. Good pairs have the same distribution on both sides of their median (measured for German and French, 300
    to 29,000 pairs, with 0 to 50% of random targets), so as many of them are below the cut as are as far above it.
    """
    cuts = np.quantile(mismatched, np.arange(LEAST_FOUND, 1.0, 0.005))
    good = scores[scores > cuts[-1]]
    median = np.median(good) if len(good) else 0.0
    if median < LEAST_MEDIAN:
        return None
    possible = cuts[[np.mean(scores >= 2 * median - cut) <= MAX_LOST for cut in cuts]]
    return float(possible[-1]) if len(possible) else None


def word_hashes(pairs: Sequence[Pair]) -> Iterator[Words]:
    """Yields the words of the sources and of the targets, by the CRC of their first letters."""
    for side in range(2):
        found = (_WORD.findall(pair[side].casefold()) for pair in pairs)
        texts = [list(dict.fromkeys(word[:PREFIX] for word in words))[:MAX_WORDS] for words in found]
        hashes = np.fromiter((zlib.crc32(word.encode()) for text in texts for word in text), np.int64)
        yield Words(hashes, np.fromiter(map(len, texts), np.int64, len(texts)))


def _explained(p: np.ndarray, at: np.ndarray, words: Words, others: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Returns the mean of the logarithms over the words of each text."""
    mean = np.bincount(at, p, len(words.ids)) / np.maximum(others, 1)[words.text]
    logarithms = np.log((1 - CHANCE) * mean / frequencies[words.ids] + CHANCE)
    return np.bincount(words.text, logarithms, len(words.counts)) / np.maximum(words.counts, 1)


def _posteriors(entry: np.ndarray, given: np.ndarray, explained_at: np.ndarray) -> np.ndarray:
    """Returns how likely each cell is an alignment, by expectation maximization from uniform probabilities."""
    p = np.ones(len(given))
    for _ in range(ITERATIONS):
        posterior = p[entry]
        posterior /= np.bincount(explained_at, posterior)[explained_at]
        counts = np.bincount(entry, posterior, len(given))
        p = counts / np.bincount(given, counts)[given]
    return posterior


def _cells(source: Words, target: Words, vocabulary: int) -> Cells:
    counts = source.counts * target.counts
    pair = np.repeat(np.arange(len(counts)), counts)
    i, j = np.divmod(_ranges(counts), target.counts[pair])
    source_at = (np.cumsum(source.counts) - source.counts)[pair] + i
    target_at = (np.cumsum(target.counts) - target.counts)[pair] + j
    return Cells(source_at, target_at, source.ids[source_at] * vocabulary + target.ids[target_at])


def _ranges(counts: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ... count - 1 for each of the counts."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _found(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the index of each value among sorted known ones, and -1 if it is not there."""
    places = np.searchsorted(known, values)
    return np.where(np.append(known, -1)[places] == values, places, -1)
