"""Scores of the runs of one or two systems on the same lines, and whether their difference may be chance.

Both the choice of test sentences and the seeds of training are chance. The Multi-Bootstrap (Sellam et al. 2022,
section 3) resamples both: it extends the paired bootstrap of Koehn (2004), which resamples sentences.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingua_flax.evaluation.bleu import BOOTSTRAP_SAMPLES, make_metrics
from lingua_flax.evaluation.evaluate import EvaluationSet
from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU

SEED = 12345  # that of sacreBLEU, which then draws the same sentences
Texts = Mapping[str, Sequence[Sequence[str]]]  # the translations of each run, by system


@dataclasses.dataclass(frozen=True)
class MetricScores:
    """The scores by one metric, in percent, of the runs of each system: their mean, and the deviation of several.

    The difference, with 95% interval and p-value, is how much higher the mean of the first of two systems is.
    """

    signature: str
    scores: Mapping[str, Sequence[float]]
    mean: Mapping[str, float]
    deviation: Mapping[str, float]
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


def score_systems(texts: Texts, data: EvaluationSet, *, tokenize: str, lowercase: bool) -> dict[str, MetricScores]:
    """Scores all runs by BLEU, chrF and TER, and on Multi30k in its published protocol; arguments as for `score`."""
    metrics = make_metrics(tokenize=tokenize, lowercase=lowercase, with_ter=True)
    if lowercase:
        del metrics["bleu_lowercase"]  # the same as bleu
    if data.multi30k:
        metrics["published_bleu"] = PublishedBLEU(data.multi30k[0])
    references = [data.references, *data.more_references]
    return {name: score_runs(metric, texts, references) for name, metric in metrics.items()}


def score_runs(metric: Any, texts: Texts, references: Sequence[Sequence[str]]) -> MetricScores:
    """Scores the runs of one or two systems by one of sacreBLEU's metrics, and compares two.

    The interval holds the middle 95% of the differences in resamples. The p-value is the share of resamples in which
    the difference is at least as far from its mean, in either direction, as the observed difference is from 0.
    """
    # The counts of each sentence, from which sacreBLEU, too, computes its tests; no public function returns them.
    counts = [
        np.array([metric._extract_corpus_statistics(run, references) for run in runs], float) for runs in texts.values()
    ]
    scores = [[_score(metric, run.sum(axis=0)) for run in runs] for runs in counts]
    by_system = dict(zip(texts, scores, strict=True))
    mean = {name: statistics.mean(each) for name, each in by_system.items()}
    deviation = {name: statistics.stdev(each) for name, each in by_system.items() if len(each) > 1}
    result = MetricScores(str(metric.get_signature()), by_system, mean, deviation)
    if len(texts) == 1:
        return result
    observed = statistics.mean(scores[0]) - statistics.mean(scores[1])
    resampled = np.subtract(*resampled_means(metric, counts))
    farther = np.count_nonzero(abs(resampled - resampled.mean()) >= abs(observed))
    low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
    p_value = (farther + 1) / (BOOTSTRAP_SAMPLES + 1)
    return dataclasses.replace(result, difference=observed, low=low, high=high, p_value=p_value)


def resampled_means(metric: Any, counts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean score of each system's runs [systems, resamples], given the counts [runs, sentences, ...].

    A resample has as many sentences as there are, the same for all runs, and of each system as many runs as it has, all
    drawn with replacement: paired over sentences, unpaired over runs, since runs of two systems share no chance.
    """
    draw_sentences, draw_runs = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    num_sentences = counts[0].shape[1]
    means = np.empty((len(counts), BOOTSTRAP_SAMPLES))
    for sample in range(BOOTSTRAP_SAMPLES):
        sentences = draw_sentences.choice(num_sentences, num_sentences)
        for system, runs in enumerate(counts):
            scores = [_score(metric, run[sentences].sum(axis=0)) for run in runs]
            means[system, sample] = np.mean(draw_runs.choice(scores, len(runs)))
    return means


def _score(metric: Any, counts: np.ndarray) -> float:
    return metric._compute_score_from_stats(counts).score
