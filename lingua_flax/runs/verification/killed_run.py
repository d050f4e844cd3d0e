"""Trains in one process after another, each killed at a chosen moment, until the last one finishes the run."""

import logging
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import NamedTuple

from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.config_files import CONFIG_NAME
from lingua_flax.options.schema import TrainingConfig
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import Workdir

POLL_SECONDS = 0.002  # between two checks of a run's files
RESUMED = re.compile(r"^resuming from step (\d+)", re.MULTILINE)
FIRST_STEP = re.compile(r"^step \d+ started", re.MULTILINE)
log = logging.getLogger(__name__)


class TrainProcess:
    """A process that trains; its times are in seconds from the start, None before the event."""

    def __init__(self, config: Path, workdir: Path, check: Callable[[], None]):
        """Starts the process; `check` is called repeatedly while waiting for it, and raises to stop waiting.

        A run has a compilation cache of its own, so that its first start finds no compiled programs.
        """
        self.workdir = Workdir(workdir)
        self.prepared: float | None = None  # when the compilation of the step begins
        self.first_step: float | None = None
        self.killed_during = ""  # a kind of phase
        self._check, self._started = check, time.monotonic()
        self._log = workdir.with_name(f"{workdir.name}.log")
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(workdir.with_name(f"compiled-{workdir.name}"))}
        command = [sys.executable, "-m", "lingua_flax", "train", "--config", str(config), "--workdir", str(workdir)]
        with self._log.open("wb") as output:
            self._process = Popen(command, env=environment, stdin=DEVNULL, stdout=DEVNULL, stderr=output)

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Waits for the condition; returns False if the process ends first."""
        while not condition():
            self._check()
            if self._process.poll() is not None:
                return False
            seconds = time.monotonic() - self._started
            if not self.prepared and (self.workdir.path / CONFIG_NAME).exists():
                self.prepared = seconds
            if not self.first_step and FIRST_STEP.search(self._said()):
                self.first_step = seconds
            time.sleep(POLL_SECONDS)
        return True

    def finish(self) -> None:
        """Waits until the process ends, and kills it if waiting is stopped.

        If it failed, raises its error: UserError for status 2, and RunError otherwise.
        """
        try:
            self.wait_until(lambda: False)
        finally:
            self.kill()
        if self._process.returncode:
            lines = self._said().splitlines()
            message = "\n".join([line for line in lines if line.startswith("error: ")][-1:] or lines[-3:])
            message = message.removeprefix("error: ")
            raise (UserError(message) if self._process.returncode == 2 else RunError(f"training failed: {message}"))

    def kill(self) -> None:
        """Kills the process with SIGKILL, unless it has ended."""
        self._process.kill()
        self._process.wait()
        resumed = RESUMED.search(self._said())
        self.resumed_from = int(resumed[1]) if resumed else 0 if self.first_step else None  # 0 for no checkpoint
        self.last_step = self.workdir.last_step()  # in the metrics

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


class Moment(NamedTuple):
    """When to kill a process: in the phase `during`, which does not begin before `step`, after this fraction of it."""

    during: str
    step: int
    fraction: float


def draw_moments(training: TrainingConfig, num_steps: int, kills: int, seed: int) -> list[Moment]:
    """Draws a moment in each kind of phase, as far as kills allow, and others at random; returns them in order."""
    rng = random.Random(seed)
    kinds = ["a validation"] if training.eval_every else []
    kinds += ["a save", "the compilation", "the first step"]
    kinds = kinds[:kills] + [rng.choice(["training", "training", "a start"]) for _ in range(kills - len(kinds))]
    intervals = {"a save": training.checkpoint_every, "a validation": training.eval_every}

    def draw_step(kind: str) -> int:
        if kind in ("the compilation", "the first step"):
            return 0
        interval = intervals.get(kind, training.log_every)
        return min(num_steps, interval * rng.randint(1, max(1, num_steps // interval)))

    moments = [Moment(kind, draw_step(kind), rng.random()) for kind in kinds]
    return sorted(moments, key=lambda moment: (moment.step, kinds.index(moment.during)))


def run_killed(
    start: Callable[[], TrainProcess], moments: Sequence[Moment], log_every: int, uninterrupted: TrainProcess
) -> list[TrainProcess]:
    """Runs a training process, kills and restarts it at each of the moments, and then lets it finish.

    A moment that is not reached because the process ends first does not count as a kill. Kills are timed by the
    uninterrupted run. Returns the processes that were killed, and the one that finished the run.
    """
    killed: list[TrainProcess] = []
    for during, step, fraction in moments:
        seconds = fraction * _durations(uninterrupted, killed, log_every)[during]
        process = start()
        has_begun, has_ended = _phase(during, step, process, log_every)
        try:
            is_reached = process.wait_until(has_begun) and _wait(process, seconds, has_ended)
        finally:
            process.kill()
        if is_reached:
            process.killed_during = "training" if has_ended() else during
            killed.append(process)
            log.info("kill %d: during %s, after step %d", len(killed), process.killed_during, process.last_step)
    last = start()
    last.finish()
    return [*killed, last]


def _wait(process: TrainProcess, seconds: float, has_ended: Callable[[], object]) -> bool:
    """Waits for so long, or until the phase has ended; returns False if the process ends first."""
    kill_time = time.monotonic() + seconds
    # The duration may be that of a start that compiled. One that finds its programs in the cache is over earlier, and
    # would train on: on a GPU, to the end of 2,000 steps.
    return process.wait_until(lambda: time.monotonic() >= kill_time or has_ended())


def _durations(uninterrupted: TrainProcess, killed: Sequence[TrainProcess], log_every: int) -> dict[str, float]:
    """Returns about how many seconds each kind of phase takes."""
    lines = uninterrupted.workdir.read_metrics()
    last_step = [line for line in lines if "loss" in line][-1]
    step = last_step["tokens"] / last_step["tokens_per_second"]
    assert uninterrupted.first_step
    assert uninterrupted.prepared
    return {
        "a start": min(process.first_step for process in (uninterrupted, *killed) if process.first_step),
        "the compilation": uninterrupted.first_step - uninterrupted.prepared,
        "the first step": step,
        "training": step * min(log_every, last_step["step"]),
        "a save": 0.0,
        "a validation": min((line["validation_seconds"] for line in lines if "validation_loss" in line), default=0.0),
    }


def _phase(
    during: str, step: int, process: TrainProcess, log_every: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns whether a phase of a process has begun, and whether it has ended before the process was killed."""
    workdir = process.workdir

    def is_training() -> bool:
        return process.first_step is not None

    def is_saving() -> bool:  # a checkpoint has a temporary name until it is complete
        return any(workdir.checkpoints.glob(f"{step}.*"))

    def is_validated() -> bool:
        return any("validation_loss" in line and line["step"] == step for line in workdir.read_metrics())

    return {
        "a start": (lambda: True, is_training),
        "the compilation": (lambda: process.prepared, is_training),
        "the first step": (is_training, lambda: False),
        "training": (lambda: is_training() and workdir.last_step() >= step - log_every, lambda: False),
        "a save": (lambda: is_saving() or step in saved_steps(workdir.checkpoints), lambda: not is_saving()),
        # The validation begins right after the line of its step is written.
        "a validation": (lambda: workdir.last_step() >= step, is_validated),
    }[during]
