"""The comparison of two runs: their batches, every number in their metrics and every array that they saved."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lingua_flax.runs.checkpoint import digests, read_item, saved_steps
from lingua_flax.runs.workdir import Workdir

# The keys of metrics.jsonl whose values depend on the machine's speed and caches.
MACHINE_DEPENDENT = {"seconds", "validation_seconds", "tokens_per_second", "idle", "programs_compiled"}
MACHINE_DEPENDENT |= {"compile_seconds"}


class PartComparison(NamedTuple):
    """A part of two runs that has to be equal in both: its extent in words, its SHA-256, and the first difference."""

    what: str
    extent: str
    digests: tuple[str, str]
    difference: str

    @property
    def same(self) -> bool:
        return self.digests[0] == self.digests[1]


def compare(first: Path, second: Path) -> list[PartComparison]:
    """Compares the workdirs of two finished runs: batches, metrics and the stored arrays of the last checkpoint."""
    metrics = [Workdir(workdir).read_metrics() for workdir in (first, second)]
    batches, numbers = zip(*(_batches_and_numbers(lines) for lines in metrics), strict=True)
    compared = [_compare_part("batches", "batches", *batches), _compare_part("metrics.jsonl", "numbers", *numbers)]
    arrays = [_arrays(workdir / "checkpoints") for workdir in (first, second)]
    return compared + [_compare_part(what, "arrays", arrays[0][what], arrays[1].get(what, {})) for what in arrays[0]]


def _batches_and_numbers(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    batches, numbers = {}, {}
    for number, line in enumerate(lines, 1):
        kind = "validation" if "validation_loss" in line else "step"
        for name, value in line.items():
            if name == "batch":
                batches[f"step {line['step']}"] = value
            elif name not in MACHINE_DEPENDENT:
                numbers[f"line {number}, {kind} {line['step']}, {name}"] = value
    return batches, numbers


def _arrays(checkpoints: Path) -> dict[str, dict[str, str]]:
    """Returns the SHA-256 of each array of the last checkpoint: parameters, optimizer and, if there is one, average.

    A moving average is stored as the item params. The parameters that were trained then come last in the item training:
    optimizer, step, skipped, skipped in a row, parameters.
    """
    step = saved_steps(checkpoints)[-1]
    params, training = (digests(item, read_item(checkpoints, step, item)) for item in ("params", "training"))
    trained = {name: digest for name, digest in training.items() if name.startswith("training[4]")}
    optimizer = {name: digest for name, digest in training.items() if name not in trained}
    parts = {"parameters": trained or params, "optimizer": optimizer}
    return parts | ({"average": params} if trained else {})


def _compare_part(what: str, unit: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> PartComparison:
    digests = [hashlib.sha256(repr(list(part.items())).encode()).hexdigest() for part in (first, second)]
    difference = "" if digests[0] == digests[1] else "different order"
    if differing := next((name for name in [*first, *second] if first.get(name) != second.get(name)), None):
        difference = f"{differing}: {first.get(differing, 'none')}, {second.get(differing, 'none')}"
    return PartComparison(what, f"{len(first):,} {unit}", (digests[0], digests[1]), difference)
