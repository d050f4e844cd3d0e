"""A comparison of runs as Markdown for a paper, and as rows of a CSV file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lingua_flax.evaluation.bleu import BOOTSTRAP_SAMPLES
from lingua_flax.evaluation.comparison import MetricScores

LABELS = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lower case",
    "chrf": "chrF",
    "ter": "TER",
    "published_bleu": "BLEU, published protocol",
}


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
                    yield f"- {what} run of {system}: seed {run['seed']}, {run['workdir']}, BLEU {score:.2f}"
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
