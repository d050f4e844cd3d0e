"""The learning curves of a run, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lingua_flax.runs.metrics import group_means

if TYPE_CHECKING:  # slow to import
    from matplotlib.figure import Figure

MAX_POINTS = 300  # of the training loss, at most; each is the mean of consecutive steps


class Curves:
    """The learning curves so far: a few numbers from each line of metrics.jsonl."""

    def __init__(self, bleu_description: str = "greedy") -> None:
        self.bleu_description = bleu_description
        self._steps: list[tuple[int, float]] = []
        self._validations: list[tuple[int, float, float, float]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """Adds a line of metrics.jsonl. A training loss that is not finite is not drawn."""
        if "validation_loss" in line:
            shuffled = line.get("validation_loss_shuffled")
            losses = (line["validation_loss"], np.nan if shuffled is None else shuffled)
            self._validations.append((line["step"], *losses, line["validation_bleu"]))
        elif line.get("loss") is not None:
            self._steps.append((line["step"], line["loss"]))

    def draw(self, title: str) -> Figure:
        """Draws the losses (top) and validation BLEU (bottom) over the steps."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 6.5))
        figure.suptitle(title, parse_math=False)  # a folder's name may contain $, which delimits math
        margins = {"left": 0.08, "right": 0.98, "top": 0.94, "bottom": 0.08, "hspace": 0.08}
        losses, scores = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2), gridspec_kw=margins)
        if self._steps:
            steps, loss = group_means(self._steps, MAX_POINTS).T
            losses.plot(steps, loss, color="tab:gray", label="training, with dropout and label smoothing")
        if self._validations:
            steps, loss, shuffled, bleu = (np.array(column) for column in zip(*self._validations, strict=True))
            losses.plot(steps, loss, "o-", markersize=4, color="tab:blue", label="validation")
            losses.plot(steps, shuffled, "o--", markersize=4, color="tab:orange", label="validation, sources shuffled")
            scores.plot(steps, bleu, "o-", markersize=4, color="tab:blue")
            scores.set_ylim(top=max(1.0, 1.1 * bleu.max()))
        losses.set_ylabel("loss, nats per token")
        losses.set_ylim(bottom=0)
        if self._steps or self._validations:
            losses.legend()
        scores.set_ylabel(f"validation BLEU ({self.bleu_description})")
        scores.set_ylim(bottom=0)
        scores.set_xlabel("step")
        for axes in (losses, scores):
            axes.grid(alpha=0.3)
        return figure
