"""The learning curves of one run, or of the runs of systems that are compared, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lingua_flax.runs.metrics import group_means

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES_NAME = "curves.png"
MAX_POINTS = 300  # of the training loss, at most; each is the mean of consecutive steps
COLORS = ("tab:blue", "tab:orange")


class Curves:
    """The learning curves of a run so far: a few numbers from each line of metrics.jsonl, by step."""

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self.training: list[tuple[int, float]] = []
        self.loss: dict[int, float] = {}
        self.shuffled_loss: dict[int, float] = {}
        self.chrf: dict[int, float] = {}
        for line in lines:
            self.add(line)

    def add(self, line: Mapping[str, Any]) -> None:
        """Adds a line of metrics.jsonl. What is None, such as a loss that is not finite, is not drawn."""
        curves = {"loss": self.loss, "loss_shuffled": self.shuffled_loss, "chrf": self.chrf}
        for name, curve in curves.items():
            if line.get(f"validation_{name}") is not None:
                curve[line["step"]] = line[f"validation_{name}"]
        if line.get("loss") is not None:
            self.training.append((line["step"], line["loss"]))


def draw_curves(systems: Mapping[str, Sequence[Curves]], title: str = "") -> Figure:
    """Draws the losses (top) and validation chrF (bottom) of the runs of each system over the steps.

    Of a single run, the training loss and the loss with shuffled sources are drawn, too.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5))
    figure.suptitle(title, parse_math=False)  # a folder's name may contain $, which delimits math
    margins = {"left": 0.08, "right": 0.98, "top": 0.94, "bottom": 0.08, "hspace": 0.08}
    losses, scores = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2), gridspec_kw=margins)
    run, *others = (run for runs in systems.values() for run in runs)
    if run.training and not others:
        label = "training, with dropout and label smoothing"
        losses.plot(*group_means(run.training, MAX_POINTS).T, color="tab:gray", label=label)
    if run.shuffled_loss and not others:
        label = "validation, sources shuffled"
        losses.plot(*_points(run.shuffled_loss), "o--", markersize=4, color=COLORS[1], label=label)
    for color, (name, runs) in zip(COLORS, systems.items(), strict=False):
        _draw_system(losses, [run.loss for run in runs], color, name)
        _draw_system(scores, [run.chrf for run in runs], color, name)
    losses.set_ylabel("loss, nats per token")
    losses.legend()
    scores.set_ylabel("validation chrF (greedy)")
    scores.set_xlabel("step")
    for axes in (losses, scores):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    return figure


def _draw_system(axes: Axes, curves: Sequence[Mapping[int, float]], color: str, name: str) -> None:
    """Draws a thin line for each of several runs, and a thick one for their mean at the steps that all have.

    A band around it has one standard deviation on either side.
    """
    steps = sorted(set(curves[0]).intersection(*curves[1:]))
    values = np.array([[curve[step] for step in steps] for curve in curves])
    mean = values.mean(axis=0)
    label = name if len(curves) == 1 else f"{name} (mean of {len(curves)})"
    axes.plot(steps, mean, "o-", markersize=4, color=color, label=label)
    if len(curves) > 1:
        for curve in curves:
            axes.plot(*_points(curve), color=color, linewidth=0.8, alpha=0.5)
        deviation = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)


def _points(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())
