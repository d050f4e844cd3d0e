"""Scores of the runs of one or two systems on the same lines, and whether their difference may be chance, as a report.

Both the choice of test sentences and the seeds of training are chance. The Multi-Bootstrap (Sellam et al. 2022,
section 3) resamples both: it extends the paired bootstrap of Koehn (2004), which resamples sentences.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lingua_flax.evaluation.bleu import BOOTSTRAP_SAMPLES, make_metrics
from lingua_flax.evaluation.evaluate import EvaluationSet
from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU

LABELS = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lower case",
    "chrf": "chrF",
    "ter": "TER",
    "published_bleu": "BLEU, published protocol",
}
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


@dataclasses.dataclass(frozen=True)
class Report:
    """The runs of each system, the scores and notes of each split or file by its title, and the options that differ."""

    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    metrics: Mapping[str, Mapping[str, MetricScores]]
    notes: Mapping[str, str]
    options: Mapping[str, Mapping[str, Sequence[Any]]]

    def markdown(self) -> Iterator[str]:
        """Yields the lines of a table for each split or file, of what is needed to read them, and of the options."""
        signatures: dict[str, None] = {}
        for title, metrics in self.metrics.items():
            yield from markdown_table([title, "runs", *(LABELS[name] for name in metrics)], self._summaries(metrics))
            yield f"\n- {self.notes[title]}"
            for system, scores in metrics["bleu"].scores.items():
                for what, score in (("best", max(scores)), ("worst", min(scores))) if len(scores) > 1 else ():
                    run = self.runs[system][scores.index(score)]
                    seed = "" if run["seed"] is None else f"seed {run['seed']}, "  # translations in a file have none
                    yield f"- {what} run of {system}: {seed}{run['workdir']}, BLEU {score:.2f}"
            yield ""
            signatures |= {f"- {LABELS[name]}: `{scores.signature}`": None for name, scores in metrics.items()}
        yield from signatures
        if len(self.runs) == 2:
            drawn = "sentences and runs" if max(map(len, self.runs.values())) > 1 else "sentences"
            what = "95% interval and two-sided p-value"
            yield f"- difference: with its {what}, by {BOOTSTRAP_SAMPLES:,} bootstrap resamples of {drawn}"
        if self.options:
            yield ""
            cells = ([" and ".join(map(str, found)) for found in row.values()] for row in self.options.values())
            rows = ([name, *row] for name, row in zip(self.options, cells, strict=True))
            yield from markdown_table(["option", *self.runs], rows)

    def _summaries(self, metrics: Mapping[str, MetricScores]) -> Iterator[list[str]]:
        """Yields a row of means for each system, and one of their differences."""
        for system, runs in self.runs.items():
            means = (f"{each.mean[system]:.2f}" for each in metrics.values())
            deviations = (f" ± {each.deviation[system]:.2f}" if len(runs) > 1 else "" for each in metrics.values())
            yield [system, str(len(runs)), *map("".join, zip(means, deviations, strict=True))]
        if len(self.runs) == 2:
            shown = "{difference:+.2f} ({low:+.2f} to {high:+.2f}), p = {p_value:.3f}"
            yield ["difference", "", *(shown.format(**vars(each)) for each in metrics.values())]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each run on each split or file: what it is, and its scores in percent."""
        for title, metrics in self.metrics.items():
            for system, runs in self.runs.items():
                for number, run in enumerate(runs):
                    scores = {name: each.scores[system][number] for name, each in metrics.items()}
                    yield {"data": title, "system": system, **run, **scores}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a Markdown table."""
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"
