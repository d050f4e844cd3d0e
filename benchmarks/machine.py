"""Reference speed of the machine, with which measured speeds are compared; as a program, prints it for one device."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from lingua_flax.commands.main import exit_status
from lingua_flax.devices.platform import initialize_devices

MATRICES = {"cpu": (2048, "float32"), "gpu": (8192, "bfloat16")}  # size and dtype, by device


def matrix_product_rate(size: int = 2048, dtype: str = "float32") -> float:
    """Returns the rate of a size x size matrix product in floating-point operations per second, the best of ten."""
    matrix = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.dot)
    product(matrix, matrix).block_until_ready()
    times = []
    for _ in range(10):
        started = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times)


def command(argv: Sequence[str]) -> None:
    """Prints the rate of a matrix product on the device, in operations per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=tuple(MATRICES), default="cpu")
    device = parser.parse_args(argv).device
    initialize_devices(device)
    print(matrix_product_rate(*MATRICES[device]))


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
