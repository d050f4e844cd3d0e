"""Whether the host keeps up with a fast accelerator: train.py's own loop before a device that only takes its time.

The simulated device runs steps one after the other, each for so many milliseconds, while the host goes on: batches are
planned, gathered and placed, metrics fetched and written as in any run. Nothing is computed. "waiting" is what the run
itself reports: the share of time in which the device had nothing to do, at most.

Run from the repository's root:
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

import training.loop
from commands.main import main
from commands.train import train
from runs.workdir import Workdir
from training.step import StepMetrics


class Device:
    """Runs one step after the other; each takes the same time, from when it is given or the one before is done."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._free_at = 0.0

    def make_train_step(self, *_: Any) -> Any:
        """In place of training.step.make_train_step."""
        return self._step

    def _step(self, state: Any, batch: Any) -> tuple[Any, StepMetrics]:
        tokens = np.count_nonzero(np.asarray(batch.target_out))
        self._free_at = max(self._free_at, time.monotonic()) + self._seconds
        values = StepMetrics(1.0, tokens, 1.0, 1.0, 0, np.zeros(2, np.uint32))  # type: ignore[arg-type]
        return state, StepMetrics(*(Later(value, self._free_at) for value in values))  # type: ignore[arg-type]


class Later:
    """A result that is on its way, as far as the loop looks at one."""

    def __init__(self, value: Any, ready_at: float):
        self._value = np.asarray(value)
        self._ready_at = ready_at

    def is_ready(self) -> bool:
        """Whether the step is done."""
        return time.monotonic() >= self._ready_at

    def block_until_ready(self) -> Later:
        """Waits for it, as JAX does, without the interpreter's lock."""
        if (left := self._ready_at - time.monotonic()) > 0:
            time.sleep(left)
        return self

    def copy_to_host_async(self) -> None:
        """Takes no time."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        self.block_until_ready()
        return self._value


def measure() -> None:
    """Prints the median and the greatest share of waiting behind the first tenth, and the pace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    options, others = parser.parse_known_args()
    training.loop.make_train_step = Device(options.milliseconds / 1000).make_train_step  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        length = ["--training.num-steps", str(options.steps), "--training.eval-every", "0"]
        length += ["--training.checkpoint-every", str(options.steps), "--workdir", f"{folder}/w"]
        sys.argv = ["train.py", *others, *length]
        if status := main(train):
            sys.exit(status)
        lines = Workdir(Path(folder, "w")).read_metrics()
    waiting = [line["waiting"] for line in lines[len(lines) // 10 :]]
    seconds = sorted({line["seconds"]: line["step"] for line in lines}.items())  # an interval's last step, and its time
    (begin, first), (end, last) = seconds[len(seconds) // 10], seconds[-1]
    busy = (last - first) * options.milliseconds / 1000 / (end - begin)
    print(f"waiting: median {statistics.median(waiting):.1%}, at most {max(waiting):.1%}")
    print(f"{busy:.1%} of the steps that the device could run")


if __name__ == "__main__":
    measure()
