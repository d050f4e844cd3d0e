"""Times the training step on a batch that lies on the device, without the input pipeline, and prints one line.

Run from the repository root: python benchmarks/step.py --config CONFIG [--steps N] [OPTION ...]

Other options are those of lingua-flax train, for example --model.attention fused. The last column is a digest of the
loss of every step and of the parameters after the last: processes that compute the same bits print the same.
"""

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from lingua_flax.__main__ import exit_status
from lingua_flax.data.batch import Batch
from lingua_flax.devices.compilation import set_up_compilation
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.platform import compute_precision, initialize_devices
from lingua_flax.devices.sharding import row_sharding
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.command_line import build, config_of, parse
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config
from lingua_flax.training.device_memory import format_bytes
from lingua_flax.training.kernels.fused_attention import selected_attention
from lingua_flax.training.state import initial_state, state_shardings
from lingua_flax.training.step import make_train_step

SENTENCE = 28  # mean length in tokens of the sentences in a packed row
BLOCK = 10  # steps between two readings of the clock


def packed_batch(config: Config, rows: int, seed: int) -> Batch:
    """Returns rows of random ids, packed with sentences of random lengths, about 95% full."""
    draw, length = np.random.default_rng(seed), config.data.row_length
    sides = []
    for _ in range(2):
        starts = draw.random((rows, length)) < 1 / SENTENCE
        starts[:, 0] = True
        segments = np.cumsum(starts, axis=1)
        segments[:, length - length // 20 :] = 0
        first = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
        ids = draw.integers(4, config.tokenizer.vocab_size, (rows, length))
        sides.append([np.where(segments > 0, array, 0) for array in (ids, segments, np.arange(length) - first)])
    (source, source_segments, source_positions), (target, segments, positions) = sides
    arrays = (source, source_segments, source_positions, np.roll(target, 1, axis=1), target, segments, positions)
    return Batch._make(array.astype(np.int32) for array in arrays)


def measure(config: Config, steps: int) -> str:
    """Returns the row of a table: time of compilation, memory, time of a step, positions per second, digest."""
    initialize_devices(config.devices.platform, deterministic=config.devices.deterministic)
    set_up_compilation()
    mesh = make_mesh(config.devices.mesh, jax.devices())
    sizes = (config.tokenizer.vocab_size,) * 2
    fused = selected_attention(config, mesh)
    network = structure(config.model, *sizes, compute_precision(config.devices.precision, mesh), fused)
    shardings = state_shardings(network, config, mesh)
    key = jax.random.key(config.training.seed)
    state = jax.jit(lambda: initial_state(initial_params(config.model, *sizes, key), config), out_shardings=shardings)()
    rows = config.rows_per_batch
    batches = [jax.device_put(packed_batch(config, rows, seed), row_sharding(mesh)) for seed in range(4)]
    started = time.perf_counter()
    step = make_train_step(network, config, config.training.num_steps or steps, mesh).lower(state, batches[0]).compile()
    compile_seconds = time.perf_counter() - started
    memory = step.memory_analysis()
    losses, times = [], []
    for block in range(1 + steps // BLOCK):
        started = time.perf_counter()
        for number in range(BLOCK):
            state, metrics = step(state, batches[number % len(batches)])
            losses.append(metrics.loss)
        jax.block_until_ready(losses)
        if block:
            times.append((time.perf_counter() - started) / BLOCK)
    digest = hashlib.sha256(np.stack(jax.device_get(losses)).tobytes())
    for leaf in jax.tree.leaves(jax.device_get(state.params)):
        digest.update(leaf.tobytes())
    seconds = statistics.median(times)
    cells = [
        mesh.devices.flat[0].device_kind,
        f"{config.model.embed_dim} wide, {rows} rows, attention: {fused or 'plain'}",
        f"{compile_seconds:.1f} s",
        format_bytes(memory.temp_size_in_bytes) if memory else "?",
        f"{1e3 * seconds:.2f} ms ({1e3 * min(times):.2f} to {1e3 * max(times):.2f})",
        f"{rows * config.data.row_length / seconds:,.0f}",
        f"{losses[-1]:.5f}",
        digest.hexdigest()[:12],
    ]
    return f"| {' | '.join(cells)} |"


def command(argv: Sequence[str]) -> None:
    """Prints the row of one config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    options, others = parser.parse_known_args(argv)
    config = config_of(build(Config, parse(Config, others, ""), **dict(read_config(options.config))))
    print(measure(config, options.steps))


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
