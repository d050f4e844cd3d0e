"""Measures whether the host keeps up with a fast accelerator: runs the loop of lingua-flax train on a simulated device.

The simulated device computes nothing: it runs one step after another, each of which takes a given number of
milliseconds. Meanwhile the host works as in any run: it plans, gathers and places batches, and fetches and writes
metrics. "idle" is the value that the run itself reports: an upper bound on the share of time in which the device is
idle.

Run from the repository root:
  python benchmarks/simulated_device.py --config configs/tiny.toml --milliseconds 2.5
  python benchmarks/simulated_device.py --config configs/tiny.toml --milliseconds 26 --data.row-length 128 \
      --model.max-length 128 --training.tokens-per-batch 26624
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import lingua_flax.training.programs
from lingua_flax.commands.main import exit_status
from lingua_flax.commands.train import train
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.step import StepMetrics


class SimulatedDevice:
    """Runs one step after another; each takes the same time, once it is dispatched and the previous one has ended."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._free_at = 0.0

    def make_train_step(self, *_: Any) -> Any:
        """Replaces training.step.make_train_step."""
        return self._step

    def _step(self, state: Any, batch: Any) -> tuple[Any, StepMetrics]:
        tokens = np.count_nonzero(np.asarray(batch.target_out))
        self._free_at = max(self._free_at, time.monotonic()) + self._seconds
        values = StepMetrics(1.0, tokens, 1.0, 1.0, 0, np.zeros(2, np.uint32))  # type: ignore[arg-type]
        return state, StepMetrics(*(PendingArray(value, self._free_at) for value in values))  # type: ignore[arg-type]


class PendingArray:
    """A result of a step that is still running, with the part of jax.Array's interface that the loop uses."""

    def __init__(self, value: Any, ready_at: float):
        self._value = np.asarray(value)
        self._ready_at = ready_at

    def is_ready(self) -> bool:
        """Returns whether the step has ended."""
        return time.monotonic() >= self._ready_at

    def block_until_ready(self) -> PendingArray:
        """Waits for the step without holding the GIL, as JAX does."""
        if (remaining := self._ready_at - time.monotonic()) > 0:
            time.sleep(remaining)
        return self

    def copy_to_host_async(self) -> None:
        """Does nothing: the value is already on the host."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        self.block_until_ready()
        return self._value


def measure() -> None:
    """Prints the share of time in which the device is idle and its utilization, without the first tenth of the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    options, train_options = parser.parse_known_args()
    device = SimulatedDevice(options.milliseconds / 1000)
    lingua_flax.training.programs.make_train_step = device.make_train_step  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        run_options = ["--training.num-steps", str(options.steps), "--training.eval-every", "0"]
        run_options += ["--training.checkpoint-every", str(options.steps), "--workdir", f"{folder}/w"]
        if status := exit_status(train, [*train_options, *run_options]):
            sys.exit(status)
        lines = Workdir(Path(folder, "w")).read_metrics()
    idle = [line["idle"] for line in lines[len(lines) // 10 :]]
    # The lines of a log interval have the same time: keep its last step.
    intervals = sorted({line["seconds"]: line["step"] for line in lines}.items())
    (start, first), (end, last) = intervals[len(intervals) // 10], intervals[-1]
    busy = (last - first) * options.milliseconds / 1000 / (end - start)
    print(f"idle: median {statistics.median(idle):.1%}, maximum {max(idle):.1%}")
    print(f"{busy:.1%} of the steps that the device could have run")


if __name__ == "__main__":
    measure()
