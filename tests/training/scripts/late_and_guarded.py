"""Runs a command with steps in which implicit transfers are errors, and with batches that arrive late."""

import sys
import time

import jax

import lingua_flax.training.loop
import lingua_flax.training.step_meter
from lingua_flax.__main__ import main

take_step = lingua_flax.training.loop.Run._take_step
late = 0  # seconds; each batch arrives 1,000 s after the last step, by the clock that measures idle time


def guarded(self, batch):
    global late
    jax.block_until_ready(self._state)
    late += 1000
    with jax.transfer_guard("disallow"):
        take_step(self, batch)


class Clock:
    monotonic = staticmethod(lambda: time.monotonic() + late)


if __name__ == "__main__":
    lingua_flax.training.loop.Run._take_step = guarded
    lingua_flax.training.step_meter.time = Clock
    sys.exit(main())
