"""Lines of metrics.jsonl: reading one, and summing many up for a learning curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lingua_flax.host.errors import UserError

if TYPE_CHECKING:  # lingua-flax train --help must not wait for it
    import numpy as np


def parse_metrics(line: str | bytes, location: str) -> dict[str, Any]:
    """Returns the metrics of a line; raises UserError if the line, which is at `location`, has no metrics."""
    try:
        metrics = json.loads(line)
    except (ValueError, RecursionError):
        metrics = None
    if not isinstance(metrics, dict) or type(metrics.get("step")) is not int or not _are_values_valid(metrics):
        raise UserError(f"{location}: not the metrics of a step; repair or remove it to continue the run")
    return metrics


def _are_values_valid(metrics: dict[str, Any]) -> bool:
    """Returns whether all values are numbers or None, except the digest of a batch and the samples of a validation."""
    types = {"batch": str, "samples": list}
    return all(isinstance(value, types.get(name, int | float | None)) for name, value in metrics.items())


def group_means(points: Sequence[tuple[float, ...]], max_groups: int) -> np.ndarray:
    """Returns the means of at most `max_groups` groups of consecutive points, whose sizes differ by at most one.

    There must be at least one point. The result has a row for each group, with a column for each coordinate.
    """
    import numpy as np

    groups = np.array_split(np.array(points), min(max_groups, len(points)))
    return np.array([group.mean(axis=0) for group in groups])
