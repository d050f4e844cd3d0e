"""Whether two runs are the same one: their batches, every number that they measured, every array that they saved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.checkpoint import digests, read_item, saved_steps
from runs.workdir import Workdir

# Of metrics.jsonl: these depend on the machine's mood, and on what it has in its caches.
TIMES = {"seconds", "tokens_per_second", "waiting", "programs_compiled", "compile_seconds"}


@dataclass(frozen=True)
class Compared:
    """One thing that two runs have to have alike: what there is of it, its SHA-256 in both, the first difference."""

    what: str
    extent: str
    digests: tuple[str, str]
    difference: str

    @property
    def same(self) -> bool:
        """Whether it is alike."""
        return self.digests[0] == self.digests[1]


def compare(one: Path, other: Path) -> list[Compared]:
    """Two workdirs of finished runs: batches, metrics, and the arrays of the last checkpoint as they are on disk."""
    metrics = [Workdir(workdir).read_metrics() for workdir in (one, other)]
    batches, numbers = zip(*(_batches_and_numbers(lines) for lines in metrics), strict=True)
    compared = [_compared("batches", "batches", *batches), _compared("metrics.jsonl", "numbers", *numbers)]
    parts = [_arrays(workdir / "checkpoints") for workdir in (one, other)]
    return compared + [_compared(what, "arrays", parts[0][what], parts[1].get(what, {})) for what in parts[0]]


def _batches_and_numbers(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    batches, numbers = {}, {}
    for number, line in enumerate(lines, 1):
        kind = "validation" if "validation_loss" in line else "step"
        for name, value in line.items():
            if name == "batch":
                batches[f"step {line['step']}"] = value
            elif name not in TIMES:
                numbers[f"line {number}, {kind} {line['step']}, {name}"] = value
    return batches, numbers


def _arrays(checkpoints: Path) -> dict[str, dict[str, str]]:
    """SHA-256 of each array of the last checkpoint. Where there is an average, it lies among params and the parameters
    that were trained at the end of training: optimizer, step, skipped, skipped in a row, parameters."""
    step = saved_steps(checkpoints)[-1]
    params, training = (digests(item, read_item(checkpoints, step, item)) for item in ("params", "training"))
    own = {name: digest for name, digest in training.items() if name.startswith("training[4]")}
    optimizer = {name: digest for name, digest in training.items() if name not in own}
    found = {"parameters": own or params, "optimizer": optimizer}
    return found | ({"average": params} if own else {})


def _compared(what: str, unit: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Compared:
    digests = [hashlib.sha256(repr(list(part.items())).encode()).hexdigest() for part in (one, other)]
    first = next((name for name in [*one, *other] if one.get(name) != other.get(name)), None)
    difference = f"{first}: {one.get(first, 'none')}, {other.get(first, 'none')}" if first else ""
    if not first and digests[0] != digests[1]:
        difference = "another order"
    return Compared(what, f"{len(one):,} {unit}", (digests[0], digests[1]), difference)
