"""Steps between their dispatch and their line in metrics.jsonl: what they measured, their pace, what the device waited.

A step is dispatched while the ones before it still run on the device. Its metrics start for the host with it and are
read once they are there, so that nobody stops the device to look at them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from typing import Any

import jax

from devices.compilation import Compilations
from training.step import StepMetrics

STEPS_IN_FLIGHT = 2  # the device is never idle, and a signal never waits for a long queue


@dataclasses.dataclass(frozen=True)
class DispatchedStep:
    """A step that was dispatched, and what the host knows of its batch."""

    number: int
    metrics: StepMetrics
    epoch: float
    real_tokens: float


@dataclasses.dataclass(frozen=True)
class Pace:
    """How the steps of a progress line went.

    real_tokens: share of the batches' positions, both sides, that hold a token; waiting: share of the time in which the
    device had nothing to do, at most, since batches or the host were late; compilations: of this process so far.
    """

    tokens_per_second: float
    real_tokens: float
    waiting: float
    compilations: Compilations


class StepMeter:
    """Keeps a few steps in flight, and measures the others until they are read."""

    def __init__(self, compilations: Compilations):
        self._compilations = compilations
        self._in_flight: deque[DispatchedStep] = deque()
        self._done: list[DispatchedStep] = []
        self.restart()

    def restart(self) -> None:
        """What is measured from here on belongs to the steps to come."""
        self._interval_start = self._seen_busy = time.monotonic()
        self._waited = 0.0

    def about_to_dispatch(self) -> None:
        """Adds up for how long, at most, the device has had nothing to do before the next step is given to it."""
        if not self._in_flight or self._in_flight[-1].metrics.loss.is_ready():  # type: ignore[attr-defined]
            self._waited += time.monotonic() - self._seen_busy

    def dispatched(self, step: DispatchedStep) -> None:
        """Takes in a step, and waits for the one that is STEPS_IN_FLIGHT before it."""
        self._seen_busy = time.monotonic()
        for metric in step.metrics:
            metric.copy_to_host_async()
        self._in_flight.append(step)
        if len(self._in_flight) > STEPS_IN_FLIGHT:
            self._finish_oldest()

    def wait(self) -> None:
        """Waits for all steps in flight."""
        while self._in_flight:
            self._finish_oldest()

    @property
    def last_done(self) -> int | None:
        """The last step that is done and was not read yet."""
        return self._done[-1].number if self._done else None

    def read(self, seconds: float) -> tuple[list[dict[str, Any]], Pace]:
        """The lines of the steps that are done, for metrics.jsonl, and their pace; there has to be one.

        Args:
          seconds: the run's training time so far.
        """
        steps, self._done = self._done, []
        metrics: list[StepMetrics] = jax.device_get([step.metrics for step in steps])
        elapsed = self._seen_busy - self._interval_start
        pace = Pace(
            sum(float(each.tokens) for each in metrics) / elapsed,
            sum(step.real_tokens for step in steps) / len(steps),
            self._waited / elapsed,
            dataclasses.replace(self._compilations),
        )
        self._interval_start, self._waited = self._seen_busy, 0.0
        return [_line(step, each, pace, seconds) for step, each in zip(steps, metrics, strict=True)], pace

    def _finish_oldest(self) -> None:
        step = self._in_flight.popleft()
        jax.block_until_ready(step.metrics.loss)
        self._done.append(step)
        self._seen_busy = time.monotonic()


def _line(step: DispatchedStep, metrics: StepMetrics, pace: Pace, seconds: float) -> dict[str, Any]:
    loss, norm = float(metrics.loss), float(metrics.gradient_norm)
    return {
        "step": step.number,
        "loss": loss if math.isfinite(loss) else None,
        "gradient_norm": norm if math.isfinite(norm) else None,
        "learning_rate": float(metrics.learning_rate),
        "tokens": int(metrics.tokens),
        "batch": "".join(f"{int(word):08x}" for word in metrics.batch),
        "epoch": round(step.epoch, 4),
        "real_tokens": round(step.real_tokens, 4),
        "skipped_in_a_row": int(metrics.skipped_in_a_row),
        "tokens_per_second": round(pace.tokens_per_second, 1),
        "waiting": round(pace.waiting, 4),
        "programs_compiled": pace.compilations.programs,
        "compile_seconds": round(pace.compilations.seconds, 2),
        "seconds": round(seconds, 3),
    }
