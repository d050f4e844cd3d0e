"""The learning curves of the runs of one or two systems in one picture, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # slow to import
    from matplotlib.figure import Figure

COLORS = ("tab:blue", "tab:orange")


def draw_curves(systems: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> Figure:
    """Draws the loss (top) and BLEU (bottom) of all validations, given each run's lines of metrics.jsonl by system.

    A thin line is a run. A thick one is the mean of a system at the steps at which all its runs were validated, in a
    band of one standard deviation on either side.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5))
    margins = {"left": 0.08, "right": 0.98, "top": 0.98, "bottom": 0.08, "hspace": 0.08}
    rows = figure.subplots(2, 1, sharex=True, gridspec_kw=margins)
    labels = {"validation_loss": "validation loss, nats per token", "validation_bleu": "validation BLEU"}
    for axes, (key, label) in zip(rows, labels.items(), strict=True):
        for color, (name, runs) in zip(COLORS, systems.items(), strict=False):
            curves = [{line["step"]: line[key] for line in run if line.get(key) is not None} for run in runs]
            for curve in curves:
                axes.plot(list(curve), list(curve.values()), color=color, linewidth=0.8, alpha=0.5)
            steps = sorted(set(curves[0]).intersection(*curves[1:]))
            values = np.array([[curve[step] for step in steps] for curve in curves])
            mean = values.mean(axis=0)
            axes.plot(steps, mean, "o-", markersize=4, color=color, label=f"{name} (mean of {len(runs)})")
            if len(runs) > 1:
                deviation = values.std(axis=0, ddof=1)
                axes.fill_between(steps, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    rows[0].legend()
    rows[1].set_xlabel("step")
    return figure
