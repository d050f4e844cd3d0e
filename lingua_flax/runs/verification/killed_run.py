"""Trains in one process after another, each killed at a chosen moment, until the last one finishes the run."""

import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import NamedTuple, Self

from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.config_files import CONFIG_NAME
from lingua_flax.options.schema import Config
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import Workdir

POLL_SECONDS = 0.002  # between two checks of a run's files
RESUMED = re.compile(r"resuming from step (\d+)")
FIRST_STEP = re.compile(r"step \d+ started")
log = logging.getLogger(__name__)


class TrainProcess:
    """A process that trains, with its log and its timing in seconds from the start, None before the event."""

    def __init__(self, config: Path, workdir: Path, compilation_cache: Path, check: Callable[[], None]):
        """Starts the process; `check` is called repeatedly while waiting for it, and raises to stop waiting.

        A run has a compilation cache of its own, so that its first start finds no compiled programs.
        """
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compilation_cache)}
        command = [sys.executable, "-m", "lingua_flax", "train", "--config", str(config), "--workdir", str(workdir)]
        self.workdir = Workdir(workdir)
        self._check = check
        self.started = time.monotonic()
        self.process = Popen(command, env=environment, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, text=True)
        self.resumed_from: int | None = None  # the step of a checkpoint, 0 for none
        self.seconds_to_first_step: float | None = None
        self.prepared: float | None = None  # when the compilation of the step begins
        self.printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.printed.append(line)
            if match := RESUMED.match(line):
                self.resumed_from = int(match[1])
            if FIRST_STEP.match(line):
                self.seconds_to_first_step = time.monotonic() - self.started
                self.resumed_from = self.resumed_from or 0

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Waits for the condition; returns False if the process ends first."""
        while not condition():
            self._check()
            if self.process.poll() is not None:
                return False
            if self.prepared is None and (self.workdir.path / CONFIG_NAME).exists():
                self.prepared = time.monotonic() - self.started
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
        if self.process.returncode:
            errors = [line for line in self.printed if line.startswith("error: ")]
            message = "".join(errors[-1:] or self.printed[-3:]).strip().removeprefix("error: ")
            raise (UserError(message) if self.process.returncode == 2 else RunError(f"training failed: {message}"))

    def kill(self) -> None:
        """Kills the process with SIGKILL, unless it has ended, and reads the rest of its output."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


class PhaseDurations(NamedTuple):
    """The durations of phases of the uninterrupted run, in seconds; kills are timed within them."""

    start: float  # to the first step
    compilation: float  # likewise
    step: float
    validation: float  # the shortest one, 0 if there was none

    @classmethod
    def of(cls, training: TrainProcess) -> Self:
        """Returns the durations of a finished run."""
        lines = training.workdir.read_metrics()
        last_step = [line for line in lines if "loss" in line][-1]
        step = last_step["tokens"] / last_step["tokens_per_second"]
        validation = min((line["validation_seconds"] for line in lines if "validation_loss" in line), default=0.0)
        start, prepared = training.seconds_to_first_step, training.prepared
        assert start is not None
        assert prepared is not None
        return cls(start, start - prepared, step, validation)


class Moment(NamedTuple):
    """When to kill a process: in the phase `during`, which does not begin before `step`, after this fraction of it."""

    during: str
    step: int
    fraction: float


def draw_moments(config: Config, num_steps: int, kills: int, seed: int) -> list[Moment]:
    """Draws a moment in each kind of phase, as far as kills allow, and others at random; returns them in order."""
    rng = random.Random(seed)
    training = config.training
    kinds = ["a validation"] if training.eval_every else []
    kinds += ["a save", "the compilation", "the first step"]
    kinds = kinds[:kills] + [rng.choice(["training", "training", "a start"]) for _ in range(kills - len(kinds))]

    def draw_step(kind: str) -> int:
        if kind in ("the compilation", "the first step"):
            return 0
        interval = {"a save": training.checkpoint_every, "a validation": training.eval_every}.get(kind, 1)
        return min(num_steps, interval * rng.randint(1, max(1, num_steps // interval)))

    moments = [Moment(kind, draw_step(kind), rng.random()) for kind in kinds]
    return sorted(moments, key=lambda moment: (moment.step, kinds.index(moment.during)))


class Kill(NamedTuple):
    """A kill that took place; `after` is the last step in the metrics."""

    during: str
    after: int
    process: TrainProcess


def run_killed(
    start: Callable[[], TrainProcess], moments: Sequence[Moment], config: Config, pace: PhaseDurations
) -> tuple[list[Kill], TrainProcess]:
    """Runs a training process, kills and restarts it at each of the moments, and then lets it finish.

    A moment that is not reached because the process ends first does not count as a kill. `pace` is that of the
    uninterrupted run. Returns the kills, and the process that finished the run.
    """
    kills: list[Kill] = []
    for moment in moments:
        training = start()
        phase = _phase(moment, training, config, pace)
        try:
            is_reached = _wait_for(phase, moment.fraction, training)
        finally:
            training.kill()
        if is_reached:
            during = "training" if phase.has_ended() else moment.during
            kills.append(Kill(during, training.workdir.last_step(), training))
            log.info("kill %d: during %s, after step %d", len(kills), during, kills[-1].after)
            pace = pace._replace(start=min(pace.start, training.seconds_to_first_step or pace.start))
    last = start()
    last.finish()
    return kills, last


class _Phase(NamedTuple):
    """A phase of a process, of about `seconds`; it may have left the phase before it is killed."""

    has_begun: Callable[[], object]
    has_ended: Callable[[], object]
    seconds: float


def _wait_for(phase: _Phase, fraction: float, training: TrainProcess) -> bool:
    """Waits until this fraction of the phase is over; returns False if the process ends first."""
    if not training.wait_until(phase.has_begun):
        return False
    kill_time = time.monotonic() + fraction * phase.seconds
    # The duration may be that of a start that compiled. One that finds its programs in the cache is over earlier, and
    # would train on: on a GPU, to the end of 2,000 steps.
    return training.wait_until(lambda: time.monotonic() >= kill_time or phase.has_ended())


def _phase(moment: Moment, training: TrainProcess, config: Config, pace: PhaseDurations) -> _Phase:
    workdir, step = training.workdir, moment.step
    logged = step - step % config.training.log_every

    def is_training() -> bool:
        return training.seconds_to_first_step is not None

    def is_saving() -> bool:  # a checkpoint has a temporary name until it is complete
        return any(workdir.checkpoints.glob(f"{step}.*"))

    def is_validated() -> bool:
        return any("validation_loss" in line and line["step"] == step for line in workdir.read_metrics())

    return {
        "a start": _Phase(lambda: True, is_training, pace.start),
        "the compilation": _Phase(lambda: training.prepared, is_training, pace.compilation),
        "the first step": _Phase(is_training, lambda: False, pace.step),
        "a save": _Phase(lambda: is_saving() or step in saved_steps(workdir.checkpoints), lambda: not is_saving(), 0.0),
        # The validation begins right after the line of its step is written.
        "a validation": _Phase(lambda: workdir.last_step() >= step, is_validated, pace.validation),
        "training": _Phase(
            lambda: is_training() and workdir.last_step() >= logged, lambda: False, pace.step * (step - logged)
        ),
    }[moment.during]
