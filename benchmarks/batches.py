"""Measures how fast the host produces training batches, planning included: an upper bound on training throughput.

Run from the repository root with the workdir of a run: python benchmarks/batches.py --workdir checkpoints/tiny
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.training.preparation import prepare


def main() -> None:
    """Prints the target tokens per second, without padding, of each round and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    prepared = prepare(read_workdir_config(options.workdir), options.workdir)
    rates = []
    with closing(prepared.batches()) as batches:
        next(batches)
        for _ in range(options.rounds):
            started = time.perf_counter()
            tokens = sum(np.count_nonzero(next(batches).rows.target_out) for _ in range(options.batches))
            rates.append(tokens / (time.perf_counter() - started))
            print(f"{rates[-1]:,.0f} target tokens/s")
    print(f"median {statistics.median(rates):,.0f} target tokens/s")


if __name__ == "__main__":
    main()
