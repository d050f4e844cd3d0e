"""Minimum Bayes risk decoding: the sample that is most like all samples, by chrF (Eikema and Aziz 2020)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

MAX_ORDER = 6  # of character n-grams, as in sacreBLEU's chrF
RECALL_WEIGHT = 2**2


def by_expected_chrf(texts: Sequence[str]) -> list[int]:
    """Returns the indices of sampled translations of a sentence, the one with the highest mean chrF against all first.

    Each sample stands for the translations that the network holds possible, so this mean is an estimate of the chrF to
    expect. Equal ones keep their order.
    """
    return np.argsort(-chrf_matrix(texts).mean(axis=1), kind="stable").tolist()


def chrf_matrix(texts: Sequence[str]) -> Float[np.ndarray, "T T"]:
    """Returns chrF, from 0 to 1, of each text as a translation where each text is the reference (Popović 2015)."""
    without_spaces = ["".join(text.split()) for text in texts]
    precision, recall, orders = np.zeros((3, len(texts), len(texts)))
    for order in range(1, MAX_ORDER + 1):
        counts = _ngram_counts(without_spaces, order)
        totals = counts.sum(axis=1)
        shared = np.stack([np.minimum(row, counts).sum(axis=1) for row in counts])
        exists = (totals[:, None] > 0) & (totals > 0)  # sacreBLEU's "effective order"
        precision += np.where(exists, shared / np.maximum(totals, 1)[:, None], 0.0)
        recall += np.where(exists, shared / np.maximum(totals, 1), 0.0)
        orders += exists
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    divisor = RECALL_WEIGHT * precision + recall
    return np.where(divisor > 0, (1 + RECALL_WEIGHT) * precision * recall / np.where(divisor > 0, divisor, 1.0), 0.0)


def _ngram_counts(texts: Sequence[str], order: int) -> Float[np.ndarray, "T N"]:
    counted = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in texts]
    columns = {ngram: column for column, ngram in enumerate(dict.fromkeys(ngram for own in counted for ngram in own))}
    counts = np.zeros((len(texts), len(columns)))
    for row, own in zip(counts, counted, strict=True):
        row[[columns[ngram] for ngram in own]] = list(own.values())
    return counts
