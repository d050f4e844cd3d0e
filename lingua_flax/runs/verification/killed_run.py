"""Trains in one process after another, each killed at a chosen moment, until the last one finishes the run."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.config_files import CONFIG_NAME
from lingua_flax.options.schema import Config
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import Workdir

# On GPUs, makes XLA add in the same order in every run and not choose algorithms by timing them.
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
POLL_SECONDS = 0.002  # between two checks of a run's files
RESUMED = re.compile(r"resuming from step (\d+)")
FIRST_STEP = re.compile(r"step \d+ started")


class TrainProcess:
    """A process that trains, with its log and its timing.

    Attributes:
      started: when it was started (time.monotonic).
      resumed_from: the step of the checkpoint that it resumed from, 0 for none; None until it has logged that.
      seconds_to_first_step: seconds from the start to the first step; None before it.
      prepared: seconds from the start to the compilation of the step; None before it.
      printed: the lines of its standard error so far.
    """

    def __init__(self, config: Path, workdir: Path, compilation_cache: Path, check: Callable[[], None]):
        """Starts the process.

        A run has a compilation cache of its own, so that its first start finds no compiled programs. `check` is called
        repeatedly while waiting for the process; it raises to stop waiting.
        """
        flags = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
        command = [sys.executable, "-m", "lingua_flax", "train", "--config", str(config), "--workdir", str(workdir)]
        self.workdir = workdir
        self._check = check
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(compilation_cache)},
        )  # fmt: skip
        self.resumed_from: int | None = None
        self.seconds_to_first_step: float | None = None
        self.prepared: float | None = None
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
            if self.prepared is None and (self.workdir / CONFIG_NAME).exists():
                self.prepared = time.monotonic() - self.started
            time.sleep(POLL_SECONDS)
        return True

    def finish(self) -> None:
        """Waits until the process ends.

        Raises UserError, with the message of the process, if it ended with status 2, and RunError if it failed
        otherwise.
        """
        self.wait_until(lambda: False)
        self._reader.join()
        if self.process.returncode:
            errors = [line for line in self.printed if line.startswith("error: ")]
            message = "".join(errors[-1:] or self.printed[-3:]).strip().removeprefix("error: ")
            raise (UserError(message) if self.process.returncode == 2 else RunError(f"training failed: {message}"))

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


@dataclass(frozen=True)
class PhaseDurations:
    """The durations of phases of the uninterrupted run, in seconds; kills are timed within them.

    Attributes:
      start: from the start of the process to its first step.
      compilation: from the preparation of the run to its first step.
      validation: the shortest validation, 0 if there was none.
    """

    start: float
    compilation: float
    step: float
    validation: float

    @classmethod
    def of(cls, training: TrainProcess) -> PhaseDurations:
        """Returns the durations of a finished run."""
        lines = Workdir(training.workdir).read_metrics()
        last_step = [line for line in lines if "loss" in line][-1]
        assert training.seconds_to_first_step is not None
        assert training.prepared is not None
        return cls(
            training.seconds_to_first_step,
            training.seconds_to_first_step - training.prepared,
            last_step["tokens"] / last_step["tokens_per_second"],
            min((line["seconds"] for line in lines if "validation_loss" in line), default=0.0),
        )


@dataclass(frozen=True)
class Moment:
    """When to kill a process: in the phase `during`, which does not begin before `step`, after this fraction of it."""

    during: str
    step: int
    fraction: float


def draw_moments(config: Config, num_steps: int, kills: int, seed: int) -> list[Moment]:
    """Draws the moments of the kills, in the order in which the run reaches them.

    One moment is drawn in each kind of phase, as far as the number of kills allows, and the others at random steps and
    in random starts.
    """
    rng = random.Random(seed)
    training = config.training
    kinds = ["a validation"] if training.eval_every else []
    kinds += ["a save", "the compilation", "the first step"]
    kinds = kinds[:kills] + [rng.choice(["training", "training", "a start"]) for _ in range(kills - len(kinds))]

    def draw_step(kind: str) -> int:
        if kind in ("the compilation", "the first step"):
            return 0
        interval = {"a save": training.checkpoint_every, "a validation": training.eval_every}.get(kind)
        if interval:
            return min(num_steps, interval * rng.randint(1, max(1, num_steps // interval)))
        return rng.randint(1, num_steps)

    moments = [Moment(kind, draw_step(kind), rng.random()) for kind in kinds]
    return sorted(moments, key=lambda moment: (moment.step, kinds.index(moment.during)))


@dataclass(frozen=True)
class Kill:
    """A kill that took place.

    Attributes:
      after: the last step in the metrics.
      resumed_from: the step that the process had resumed from, 0 for none; None if it was killed before that.
      seconds_to_first_step: seconds from the start of the process to its first step; None if it was killed before that.
    """

    during: str
    after: int
    resumed_from: int | None
    seconds_to_first_step: float | None


def run_killed(start: Callable[[], TrainProcess], moments: Sequence[Moment], config: Config, pace: PhaseDurations,
               report: Callable[[int, Kill], None]) -> tuple[list[Kill], TrainProcess]:  # fmt: skip
    """Runs a training process, kills and restarts it at each of the moments, and then lets it finish.

    A moment that is not reached because the process ends first does not count as a kill. `pace` holds the durations of
    the uninterrupted run, and `report` is called with the number of each kill, from 1, and the kill. Returns the kills,
    and the process that finished the run.
    """
    kills: list[Kill] = []
    for moment in moments:
        training = start()
        pace = replace(
            pace, start=min([pace.start, *(kill.seconds_to_first_step for kill in kills if kill.seconds_to_first_step)])
        )
        try:
            is_reached = _wait_for(moment, training, config, pace)
        finally:
            training.kill()
        if is_reached:
            after = Workdir(training.workdir).last_step()
            kills.append(
                Kill(_phase_at_kill(moment, training), after, training.resumed_from, training.seconds_to_first_step)
            )
            report(len(kills), kills[-1])
    last = start()
    try:
        last.finish()
    finally:
        last.kill()
    return kills, last


def _wait_for(moment: Moment, training: TrainProcess, config: Config, pace: PhaseDurations) -> bool:
    """Waits for the moment; returns False if the process ends first."""
    workdir, step = training.workdir, moment.step
    condition, seconds = {
        "a start": (lambda: True, pace.start),
        "the compilation": (lambda: training.prepared, pace.compilation),
        "the first step": (lambda: training.seconds_to_first_step, pace.step),
        "a save": (lambda: _half_saved(workdir, step) or step in saved_steps(workdir / "checkpoints"), 0.0),
        # The validation begins right after the line of its step is written.
        "a validation": (lambda: Workdir(workdir).last_step() >= step, pace.validation),
        "training": (
            lambda: (
                training.seconds_to_first_step
                and Workdir(workdir).last_step() >= step - step % config.training.log_every
            ),
            pace.step * (step % config.training.log_every),
        ),
    }[moment.during]
    if not training.wait_until(condition):
        return False
    kill_time = time.monotonic() + moment.fraction * seconds
    return training.wait_until(lambda: time.monotonic() >= kill_time)


def _phase_at_kill(moment: Moment, training: TrainProcess) -> str:
    """Returns the phase in which the process was killed: it may have left the intended one before the kill."""
    workdir, step = training.workdir, moment.step
    missed = {
        "a start": training.seconds_to_first_step,
        "the compilation": training.seconds_to_first_step,
        "a save": not _half_saved(workdir, step),
        "a validation": any(
            "validation_loss" in line and line["step"] == step for line in Workdir(workdir).read_metrics()
        ),
    }
    return "training" if missed.get(moment.during) else moment.during


def _half_saved(workdir: Path, step: int) -> bool:
    """Returns whether a checkpoint of the step has been begun; it has a temporary name until it is complete."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(path.name.startswith(f"{step}.") for path in folder.iterdir())
