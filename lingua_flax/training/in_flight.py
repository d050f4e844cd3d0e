"""What is in flight while a run trains: steps until their metrics are read, and signals until all processes know them.

Both reach the host asynchronously, so that the device is never stopped to read them.
"""

import math
import time
from collections import deque
from typing import Any, NamedTuple

import jax

from lingua_flax.devices.compilation import Compilations
from lingua_flax.devices.processes import process_max
from lingua_flax.host.errors import Interrupted
from lingua_flax.host.interruption import Interruption
from lingua_flax.training.step import StepMetrics

STEPS_IN_FLIGHT = 2  # enough to keep the device busy, few enough that a signal is handled promptly


class _Step(NamedTuple):
    number: int  # counted from 1
    metrics: StepMetrics  # on the device
    epoch: float
    real_tokens: float


class StepMeter:
    """Keeps a few steps in flight, and collects the metrics of finished steps until they are read."""

    def __init__(self, compilations: Compilations):
        self.compilations = compilations
        self._in_flight: deque[_Step] = deque()
        self._finished: list[_Step] = []
        self.restart()

    def restart(self) -> None:
        """Restarts the time measurement, so that a pause is not attributed to the next steps."""
        self._interval_start = self._last_seen_busy = time.monotonic()
        self._idle_seconds = 0.0

    def about_to_dispatch(self) -> None:
        """Adds an upper bound on how long the device has been idle; to be called just before a step is dispatched."""
        if not self._in_flight or self._in_flight[-1].metrics.loss.is_ready():  # type: ignore[attr-defined]
            self._idle_seconds += time.monotonic() - self._last_seen_busy

    def dispatched(self, number: int, metrics: StepMetrics, epoch: float, real_tokens: float) -> None:
        """Registers a dispatched step, and waits for the step that was dispatched STEPS_IN_FLIGHT before it.

        `number` counts from 1; `epoch` is the number of epochs of training data seen so far, this step included, and
        `real_tokens` the share of the batch's positions, both sides, that hold a token.
        """
        self._last_seen_busy = time.monotonic()
        for metric in jax.tree.leaves(metrics):
            metric.copy_to_host_async()
        self._in_flight.append(_Step(number, metrics, epoch, real_tokens))
        if len(self._in_flight) > STEPS_IN_FLIGHT:
            self._finish_oldest()

    def wait(self) -> None:
        while self._in_flight:
            self._finish_oldest()

    @property
    def last_finished(self) -> int:
        """The number of the last finished step, or 0 if all finished steps have been read."""
        return self._finished[-1].number if self._finished else 0

    def read(self, seconds: float) -> list[dict[str, Any]]:
        """Returns the metrics.jsonl lines of the finished steps, of which there must be at least one.

        `seconds` is the training time of the run so far. "tokens_per_second" counts real target tokens, and "idle" is
        an upper bound on the share of time in which the device was idle because a batch or the host was late.
        """
        steps, self._finished = self._finished, []
        step_metrics: list[StepMetrics] = jax.device_get([step.metrics for step in steps])
        elapsed = self._last_seen_busy - self._interval_start
        tokens = sum(float(metrics.tokens) for metrics in step_metrics)
        of_interval = {
            "tokens_per_second": round(tokens / elapsed, 1),
            "idle": round(self._idle_seconds / elapsed, 4),
            "programs_compiled": self.compilations.programs,
            "compile_seconds": round(self.compilations.seconds, 2),
            "seconds": round(seconds, 3),
        }
        self._interval_start, self._idle_seconds = self._last_seen_busy, 0.0
        return [_of_step(*step) | of_interval for step in zip(steps, step_metrics, strict=True)]

    def _finish_oldest(self) -> None:
        step = self._in_flight.popleft()
        jax.block_until_ready(step.metrics.loss)
        self._finished.append(step)
        self._last_seen_busy = time.monotonic()


class SignalExchange:
    """The signals of all processes: several processes have to stop at the same step, so they exchange theirs."""

    def __init__(self, interruption: Interruption):
        self.interruption = interruption
        self._pending: deque[jax.Array | int] = deque()  # one entry per step, 0 for no signal

    def exchange(self) -> None:
        """Begins an exchange, at every step."""
        self._pending.append(process_max(self.interruption.signal_number))

    def check(self) -> None:
        """Raises Interrupted after a signal; an exchange is read STEPS_IN_FLIGHT steps later, so that nothing waits."""
        if jax.process_count() == 1:
            self.interruption.check()
        while len(self._pending) > STEPS_IN_FLIGHT:
            if number := int(self._pending.popleft()):
                raise Interrupted(number)

    def exchange_and_check(self, _: int) -> None:
        """Raises Interrupted if a signal has arrived; waits for the other processes."""
        if number := int(process_max(self.interruption.signal_number)):
            raise Interrupted(number)


def _of_step(step: _Step, metrics: StepMetrics) -> dict[str, Any]:
    """Returns what belongs to a single step in its line of metrics.jsonl; numbers that are not finite become None."""
    return {
        "step": step.number,
        "loss": _finite(metrics.loss),
        "gradient_norm": _finite(metrics.gradient_norm),
        "learning_rate": float(metrics.learning_rate),
        "tokens": int(metrics.tokens),
        "batch": "".join(f"{int(word):08x}" for word in metrics.batch),
        "epoch": round(step.epoch, 4),
        "real_tokens": round(step.real_tokens, 4),
        "skipped_in_a_row": int(metrics.skipped_in_a_row),
    }


def _finite(metric: jax.Array) -> float | None:
    value = float(metric)
    return value if math.isfinite(value) else None
