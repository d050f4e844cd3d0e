"""Draws batches until a worker process plans them, says so, and waits for a signal."""

import signal

from lingua_flax.data.packing import Planner
from lingua_flax.data.training_batches import TrainingBatches
from tests.toy import tokenized

if __name__ == "__main__":
    pairs = tokenized([[5, 6, 3]] * 500, [[5, 6, 3]] * 500)
    batches = TrainingBatches(Planner([pairs], [1.0], 24, seed=3), 256, processes=1)
    while batches.state()["window"] < 2:
        next(batches)
    print("planning", flush=True)
    signal.pause()
