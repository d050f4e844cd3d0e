"""Which pairs of a corpus are left out because of the others: repeated ones, and those of an unusual length ratio."""

from __future__ import annotations

import re

import numpy as np

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.host.digests import short_digest

_NOT_LETTERS = re.compile(r"[\W\d_]+")
MAD_OF_NORMAL = 0.6745  # the median absolute deviation of a normal distribution with standard deviation 1
LEAST_DEVIATION = 1.0  # of a corpus, even if it consists of repetitions; 2.6 between European languages


def digests(pair: Pair) -> tuple[int, int, int]:
    """Returns digests of 8 bytes of a pair, of its letters without case, and of its source."""
    letters = [_NOT_LETTERS.sub("", text.casefold()) for text in pair]
    texts = ("\n".join(pair), "\n".join(letters if all(letters) else pair), pair[0])
    first, second, third = (short_digest(text.encode()) for text in texts)
    return first, second, third


def occurrences(digests: np.ndarray) -> np.ndarray:
    """Returns how many earlier entries are equal to each one, [entries]."""
    order = np.argsort(digests, kind="stable")
    is_first = np.diff(digests[order], prepend=~digests[order[:1]]) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    counts = np.empty(len(order), np.int64)
    counts[order] = np.arange(len(order)) - starts
    return counts


def deviations(lengths: np.ndarray) -> np.ndarray:
    """Returns how unusual the length ratio of each pair is, in standard deviations, from lengths, [pairs, 2].

    The variance of the difference is proportional to the length (Gale and Church 1993); ratio and variance are those of
    the corpus, by medians, which do not depend on what is to be left out.
    """
    source, target = lengths.T.astype(np.float64)
    scaled = source * np.median(target / np.maximum(source, 1))
    difference = (target - scaled) / np.sqrt(np.maximum(target + scaled, 1) / 2)
    return np.abs(difference) / max(np.median(np.abs(difference)) / MAD_OF_NORMAL, LEAST_DEVIATION)
