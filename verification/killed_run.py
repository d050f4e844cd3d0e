"""train.py in processes of its own, one after the other, each killed at its moment until the last one ends the run."""

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

from host.errors import RunError, UserError
from options.config_files import CONFIG_NAME
from options.schema import Config
from runs.checkpoint import saved_steps
from runs.workdir import Workdir

TRAIN = Path(__file__).parent.parent / "train.py"
# The same sums in every run, and no choice of algorithms by stopwatch; read by XLA on GPUs only.
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
POLL = 0.002  # seconds between two looks at a run's files
GOES_ON = re.compile(r"going on from step (\d+)")
UNDER_WAY = re.compile(r"step \d+ is under way")


class Training:
    """train.py in a process of its own, with what it has printed and when."""

    def __init__(self, config: Path, workdir: Path, compiled: Path, check: Callable[[], None]):
        """Starts it.

        Args:
          compiled: folder of the programs that it compiles, so that the first start finds none.
          check: called over and over while it is waited for; raises where that is to end.
        """
        flags = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
        command = [sys.executable, str(TRAIN), "--config", str(config), "--workdir", str(workdir)]
        self.workdir = workdir
        self._check = check
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(compiled)},
        )  # fmt: skip
        self.went_on_from: int | None = None  # the step of its checkpoint, 0 for none, once it has said so
        self.under_way: float | None = None  # seconds from the start to the first step
        self.prepared: float | None = None  # seconds from the start to the compilation of the step
        self.printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.printed.append(line)
            if found := GOES_ON.match(line):
                self.went_on_from = int(found[1])
            if UNDER_WAY.match(line):
                self.under_way = time.monotonic() - self.began
                self.went_on_from = self.went_on_from or 0

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Waits for the condition; False where the process ends first."""
        while not condition():
            self._check()
            if self.process.poll() is not None:
                return False
            if self.prepared is None and (self.workdir / CONFIG_NAME).exists():
                self.prepared = time.monotonic() - self.began
            time.sleep(POLL)
        return True

    def finish(self) -> None:
        """Waits for the end.

        Raises:
          UserError, RunError: what it printed last, where it fails.
        """
        self.wait_until(lambda: False)
        self._reader.join()
        if self.process.returncode:
            said = "".join(self.printed[-3:]).strip().removeprefix("error: ")
            raise UserError(said) if self.process.returncode == 2 else RunError(f"train.py failed: {said}")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


@dataclass(frozen=True)
class Pace:
    """How long things took in the run that was not killed, in seconds; moments are drawn within them."""

    start: float
    compilation: float
    step: float
    validation: float

    @classmethod
    def of(cls, training: Training) -> Pace:
        """That of a run that has ended."""
        lines = Workdir(training.workdir).read_metrics()
        rate = [line for line in lines if "loss" in line][-1]
        assert training.under_way is not None
        assert training.prepared is not None
        return cls(
            training.under_way,
            training.under_way - training.prepared,
            rate["tokens"] / rate["tokens_per_second"],
            min((line["seconds"] for line in lines if "validation_loss" in line), default=0.0),
        )


@dataclass(frozen=True)
class Moment:
    """When to kill: during what, not before which step, and how far into it (0 to 1)."""

    during: str
    step: int
    part: float


def draw_moments(config: Config, num_steps: int, kills: int, seed: int) -> list[Moment]:
    """The kills in the order in which a run comes to them: one of each kind, as far as there are so many, the others at
    random steps and in random starts."""
    draw = random.Random(seed)
    training = config.training
    kinds = ["a validation"] if training.eval_every else []
    kinds += ["a save", "the compilation", "the first step"]
    kinds = kinds[:kills] + [draw.choice(["training", "training", "a start"]) for _ in range(kills - len(kinds))]

    def at(kind: str) -> int:
        if kind in ("the compilation", "the first step"):
            return 0
        every = {"a save": training.checkpoint_every, "a validation": training.eval_every}.get(kind)
        if every:
            return min(num_steps, every * draw.randint(1, max(1, num_steps // every)))
        return draw.randint(1, num_steps)

    moments = [Moment(kind, at(kind), draw.random()) for kind in kinds]
    return sorted(moments, key=lambda moment: (moment.step, kinds.index(moment.during)))


@dataclass(frozen=True)
class Kill:
    """What was killed: during what, after which step; from which step its process had gone on, and after how many
    seconds it took its first step, None where it had not come to it."""

    during: str
    after: int
    went_on_from: int | None
    under_way: float | None


def run_killed(start: Callable[[], Training], moments: Sequence[Moment], config: Config, pace: Pace,
               tell: Callable[[int, Kill], None]) -> tuple[list[Kill], Training]:  # fmt: skip
    """A run that is killed at each of the moments and then left alone; with the process that ended it.

    A moment that never comes, since the process ended before, is no kill.
    """
    kills: list[Kill] = []
    for moment in moments:
        training = start()
        pace = replace(pace, start=min([pace.start, *(kill.under_way for kill in kills if kill.under_way)]))
        try:
            came = _wait_for(moment, training, config, pace)
        finally:
            training.kill()
        if came:
            after = Workdir(training.workdir).last_step()
            kills.append(Kill(_what_was_hit(moment, training), after, training.went_on_from, training.under_way))
            tell(len(kills), kills[-1])
    last = start()
    try:
        last.finish()
    finally:
        last.kill()
    return kills, last


def _wait_for(moment: Moment, training: Training, config: Config, pace: Pace) -> bool:
    workdir, step = training.workdir, moment.step
    until, seconds = {
        "a start": (lambda: True, pace.start),
        "the compilation": (lambda: training.prepared, pace.compilation),
        "the first step": (lambda: training.under_way, pace.step),
        "a save": (lambda: _half_saved(workdir, step) or step in saved_steps(workdir / "checkpoints"), 0.0),
        "a validation": (
            lambda: Workdir(workdir).last_step() >= step,
            pace.validation,
        ),  # which comes right behind that line
        "training": (
            lambda: training.under_way and Workdir(workdir).last_step() >= step - step % config.training.log_every,
            pace.step * (step % config.training.log_every),
        ),
    }[moment.during]
    if not training.wait_until(until):
        return False
    then = time.monotonic() + moment.part * seconds
    return training.wait_until(lambda: time.monotonic() >= then)


def _what_was_hit(moment: Moment, training: Training) -> str:
    """What the killed process was at, by what it has left: it may have been faster than the kill."""
    workdir, step = training.workdir, moment.step
    missed = {
        "a start": training.under_way,
        "the compilation": training.under_way,
        "a save": not _half_saved(workdir, step),
        "a validation": any(
            "validation_loss" in line and line["step"] == step for line in Workdir(workdir).read_metrics()
        ),
    }
    return "training" if missed.get(moment.during) else moment.during


def _half_saved(workdir: Path, step: int) -> bool:
    """Whether there is the beginning of a checkpoint of this step, which has another name until it is complete."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(path.name.startswith(f"{step}.") for path in folder.iterdir())
