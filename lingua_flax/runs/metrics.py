"""Lines of metrics.jsonl: reading one, and summing many up for a learning curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lingua_flax.host.errors import UserError

if TYPE_CHECKING:  # lingua-flax train --help must not wait for it
    import numpy as np

TYPES = {"batch": str, "samples": list}  # of values that are neither numbers nor None


def parse_metrics(line: str | bytes, location: str) -> dict[str, Any]:
    """Returns the metrics of a line; raises UserError if the line, which is at `location`, has no metrics."""
    try:
        metrics = json.loads(line)
    except (ValueError, RecursionError):
        metrics = None
    is_valid = isinstance(metrics, dict) and type(metrics.get("step")) is int
    if not is_valid or not all(isinstance(metrics[name], TYPES.get(name, int | float | None)) for name in metrics):
        raise UserError(f"{location}: not the metrics of a step; repair or remove it to continue the run")
    return metrics


def group_means(points: Sequence[tuple[float, ...]], max_groups: int) -> np.ndarray:
    """Returns the means of at most `max_groups` groups of consecutive points, of which there must be one, as rows."""
    import numpy as np

    groups = np.array_split(np.array(points), min(max_groups, len(points)))
    return np.array([group.mean(axis=0) for group in groups])
