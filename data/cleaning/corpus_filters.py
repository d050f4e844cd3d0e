"""Which pairs of a corpus are left out because of the others, by digests and by the lengths of both sides alone."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.host.digests import short_digest

MAD_OF_NORMAL = 0.6745  # the median absolute deviation of a normal distribution with standard deviation 1
LEAST_DEVIATION = 1.0  # of a corpus, even if it consists of repetitions; 2.6 between European languages
MAX_SHIFT = 5  # lines
BLOCK = 10  # lines at least; more in corpora of more than MAX_BLOCKS blocks
MAX_BLOCKS = 100_000
CHANGE = 50.0  # nats that a change of the shift must gain: about twelve lines of captions
MIN_LINES = 100  # in fewer, a shift may fit by chance
MIN_CORRELATION = 0.3  # below it, lengths do not tell anything
PARTS, PART = 10, 500  # parts whose correlations are looked at, of so many lines at least
UNRELATED = MAX_SHIFT + 1


def digests(pair: Pair) -> tuple[int, int]:
    """Returns digests of 8 bytes of a pair and of its source."""
    return short_digest("\n".join(pair).encode()), short_digest(pair.source.encode())


def occurrences(digests: np.ndarray) -> np.ndarray:
    """Returns how many earlier entries are equal to each one."""
    order = np.argsort(digests, kind="stable")
    counts = np.empty(len(order), np.int64)
    counts[order] = np.arange(len(order)) - np.searchsorted(digests[order], digests[order])
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


class Shift(NamedTuple):
    """Lines `first` to `last`, counted from 1; source line i matches target line i + `by`, or none if UNRELATED."""

    first: int
    last: int
    by: int


def correlation(lengths: np.ndarray) -> float | None:
    """Returns the correlation of the logarithms of both lengths, [pairs, 2]; None if a side has only one length."""
    return _correlation(*_standardized(lengths).T) if np.all(np.ptp(lengths, axis=0)) else None


def find_shifts(lengths: np.ndarray) -> list[Shift]:
    """Returns the parts of a corpus whose sides do not match, judging by the lengths of all lines, [pairs, 2].

    Only where lines match are their lengths correlated. The likeliest sequence of shifts, or of no relation at all, for
    all blocks of lines, each change of which must be worth it, tells where a line is missing or too many.
    """
    source, target = _standardized(lengths).T
    shifts = range(-MAX_SHIFT, MAX_SHIFT + 1)
    best = min(0.95, _usual_correlation(source, (np.roll(target, -shift) for shift in shifts)))
    if best < MIN_CORRELATION or len(source) < MIN_LINES:
        return []
    starts = np.arange(0, len(source), max(BLOCK, len(source) // MAX_BLOCKS))

    def gains(moved: np.ndarray) -> np.ndarray:
        """Returns by how much the log-likelihood of each block is greater than that of sides without a relation."""
        fit = best * source * moved - best**2 / 2 * (source**2 + moved**2)
        return np.add.reduceat(fit / (1 - best**2) - np.log(1 - best**2) / 2, starts)

    blocks = np.stack([*(gains(np.roll(target, -shift)) for shift in shifts), np.zeros(len(starts))], axis=1)
    path = _likeliest(blocks) - MAX_SHIFT
    changes = np.flatnonzero(np.diff(path, prepend=path[0] + 1))
    ends = [*starts[changes[1:]], len(source)]
    parts = (Shift(int(starts[at]) + 1, int(end), int(path[at])) for at, end in zip(changes, ends, strict=True))
    return [part for part in parts if part.by]


def _standardized(lengths: np.ndarray) -> np.ndarray:
    """Returns logarithms of lengths with mean 0 and variance 1, those of outliers and empty lines limited."""
    logs = np.log1p(lengths)
    return np.clip((logs - logs.mean(axis=0)) / np.maximum(logs.std(axis=0), 1e-9), -3, 3)


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.mean(first * second) / np.sqrt(np.mean(first**2) * np.mean(second**2) + 1e-18))


def _usual_correlation(source: np.ndarray, shifted: Iterable[np.ndarray]) -> float:
    """Returns the median, over parts of the corpus, of the correlation at the shift that fits the part best.

    That of the whole corpus is too low if the shift changes: 0.28 where half of the lines is shifted and a tenth is
    something else, of which the other half has 0.80.
    """
    count = max(1, min(PARTS, len(source) // PART))
    parts = np.array_split(source, count)
    found = [list(map(_correlation, parts, np.array_split(moved, count))) for moved in shifted]
    return float(np.median(np.max(found, axis=0)))


def _likeliest(gains: np.ndarray) -> np.ndarray:
    """Returns the states with the greatest sum of gains, [blocks, states], less the price of changes (Viterbi 1967)."""
    origins = np.empty(gains.shape, np.int8)
    total = gains[0] - CHANGE * (np.arange(gains.shape[1]) != MAX_SHIFT)  # what begins is no shift
    for block, gain in enumerate(gains):
        change = total.max() - CHANGE
        origins[block] = np.where(total >= change, np.arange(len(total)), total.argmax())
        total = np.maximum(total, change) + (gain if block else 0)
    path = np.empty(len(gains), np.int64)
    path[-1] = total.argmax()
    for block in range(len(gains) - 1, 0, -1):
        path[block - 1] = origins[block][path[block]]
    return path
