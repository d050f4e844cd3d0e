"""Measures how the cost of a training step grows with sequence length, batch size, width, depth and vocabulary.

Run from the repository root: python benchmarks/scaling.py [--steps 5] [--picture benchmarks/scaling.png]

One size is varied at a time, while the others keep their base values. Time and memory are compared with theoretical
lower bounds: the operations of a step's matrix products at the rate of a large matrix product, and the bytes that a
step must keep. Both bounds are linear in every size except length, in which attention is quadratic, and width, in which
the matrices of the layers are quadratic.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from machine import matrix_product_rate

from data.batch import Batch
from devices.compilation import set_up_compilation
from devices.mesh import make_mesh
from host.figures import save_figure
from host.malloc import keep_freed_memory
from model.flops import training_flops
from model.transformer import initial_params, structure
from options.schema import Config, DataConfig, ModelConfig, TrainingConfig
from training.device_memory import compile_step, memory_of_step
from training.step import LOSS_BLOCK, initial_state, make_train_step

WARM_UP = 2  # steps that are not measured
HEADS = 4


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of a training step.

    Attributes:
      length: positions of a row, on each of the source and target sides.
      rows: rows of a batch.
      width: embedding dimension.
      depth: layers of the encoder, and of the decoder.
      vocabulary: pieces of the joint vocabulary.
    """

    length: int = 128
    rows: int = 8
    width: int = 128
    depth: int = 3
    vocabulary: int = 8000

    def config(self) -> Config:
        """Returns a config of this size; the feed-forward layers are four times as wide as the model."""
        model = ModelConfig(
            num_encoder_layers=self.depth,
            num_decoder_layers=self.depth,
            embed_dim=self.width,
            mlp_dim=4 * self.width,
            num_heads=HEADS,
            max_length=self.length,
            tied_embeddings="all",
        )
        training = TrainingConfig(tokens_per_batch=self.rows * self.length)
        return Config(model=model, data=DataConfig(row_length=self.length), training=training)

    def operations(self) -> float:
        """Returns the floating-point operations of a step's matrix products."""
        return self.rows * training_flops(self.config().model, self.vocabulary, self.length, self.length)

    def bytes(self) -> float:
        """Returns the bytes that a step must keep, in float32.

        These are the parameters, their gradients and two moments, and the activations for the backward pass: of an
        attention layer its input, queries, keys, values, weighted mean and weights; of a feed-forward layer its input
        and hidden layer; of the output projection the logits of one block and their gradient.
        """
        parameters = self.vocabulary * self.width + self.depth * (2 * 8 + 3 * 4) * self.width**2
        positions = self.rows * self.length
        attention = 5 * positions * self.width + self.rows * HEADS * self.length**2
        feed_forward = 5 * positions * self.width
        logits = 2 * min(positions, LOSS_BLOCK) * self.vocabulary
        return 4.0 * (4 * parameters + self.depth * (3 * attention + 2 * feed_forward) + logits)


VALUES = {
    "length": (16, 32, 64, 128, 256, 512, 1024),
    "rows": (1, 2, 4, 8, 16, 32, 64),
    "width": (32, 64, 128, 256, 512, 1024),
    "depth": (1, 2, 3, 6, 12),
    "vocabulary": (1000, 2000, 4000, 8000, 16000, 32000, 64000),
}


def measure(size: Size, steps: int) -> tuple[float, float]:
    """Returns the seconds of the fastest of `steps` steps, and the bytes of memory that a step needs.

    The memory is that of the state and the batch, plus the temporary memory reported by the compiler.
    """
    config = size.config()
    mesh = make_mesh(config.devices.mesh, jax.devices()[:1])
    network = structure(config.model, size.vocabulary, size.vocabulary)
    memory = memory_of_step(network, config, mesh, compile_step(network, config, mesh))
    step = make_train_step(network, config, steps, mesh)
    params = initial_params(config.model, size.vocabulary, size.vocabulary, jax.random.key(1))
    state: Any = initial_state(params, config)
    shape = (size.rows, size.length)
    tokens = np.random.default_rng(1).integers(4, size.vocabulary, size=(3, *shape)).astype(np.int32)
    segments, positions = np.ones(shape, np.int32), np.broadcast_to(np.arange(size.length, dtype=np.int32), shape)
    batch = Batch(tokens[0], segments, positions, tokens[1], tokens[2], segments, positions)
    times = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        state, metrics = step(state, batch)
        metrics.loss.block_until_ready()
        times.append(time.perf_counter() - started)
    return min(times[WARM_UP:]), memory.total


def draw(measurements: dict[Size, tuple[float, float]], base: Size, rate: float) -> Any:
    """Returns a figure with time above and memory below, and a column for each size that is varied."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6), layout="constrained")
    panels = figure.subplots(2, len(VALUES), sharex="col", sharey="row")
    for column, (name, values) in enumerate(VALUES.items()):
        sizes = [dataclasses.replace(base, **{name: value}) for value in values]
        time_axes, memory_axes = (panels[row][column] for row in (0, 1))
        time_axes.loglog(values, [1e3 * measurements[size][0] for size in sizes], "o", label="measured")
        time_axes.loglog(values, [1e3 * size.operations() / rate for size in sizes], "-", label="lower bound")
        memory_axes.loglog(values, [1e-6 * measurements[size][1] for size in sizes], "o")
        memory_axes.loglog(values, [1e-6 * size.bytes() for size in sizes], "-")
        memory_axes.set_xlabel(name)
        memory_axes.set_xticks(values, map(str, values), rotation=60)
        for axes in (time_axes, memory_axes):
            axes.minorticks_off()
            axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("ms per step")
    panels[1][0].set_ylabel("memory, MB")
    panels[0][0].legend()
    return figure


def main() -> None:
    """Prints the table and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--picture", type=Path, default=Path("benchmarks/scaling.png"))
    options = parser.parse_args()
    if not options.picture.parent.is_dir():
        parser.error(f"--picture {options.picture}: no such folder: {options.picture.parent}")
    logging.getLogger("jax").setLevel(logging.ERROR)
    keep_freed_memory()
    set_up_compilation()
    base, rate = Size(), matrix_product_rate()
    measurements: dict[Size, tuple[float, float]] = {}
    base_sizes = ", ".join(f"{name} {value:,}" for name, value in dataclasses.asdict(base).items())
    print(f"Base: {base_sizes}; {HEADS} heads. A 2048 x 2048 matrix product: {rate / 1e9:,.0f} billion operations/s.\n")
    print("| | | ms per step | lower bound | memory, MB | lower bound |\n|---|---|---|---|---|---|")
    for name, values in VALUES.items():
        for value in values:
            size = dataclasses.replace(base, **{name: value})
            if size not in measurements:
                measurements[size] = measure(size, options.steps)
            seconds, memory = measurements[size]
            cells = (1e3 * seconds, 1e3 * size.operations() / rate, 1e-6 * memory, 1e-6 * size.bytes())
            print(f"| {name} | {value:,} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |", flush=True)
    save_figure(draw(measurements, base, rate), options.picture)
    print(f"\npicture: {options.picture}", file=sys.stderr)


if __name__ == "__main__":
    main()
