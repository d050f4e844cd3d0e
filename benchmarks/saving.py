"""Measures the cost of saving checkpoints.

By default, training runs with many checkpoints and with none, in alternation. With --state, single saves are measured:
how long one blocks training, compared with a plain copy of the state.

Run from the repository root:
  python benchmarks/saving.py [--config configs/tiny.toml] [--rounds 3] [--steps 300] [--every 50] [TRAINING OPTIONS]
  python benchmarks/saving.py --config configs/wmt14_en_de_big.toml --state
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config
from lingua_flax.runs.checkpoint import Checkpoints
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.state import checkpoint_items, initial_state

ROOT = Path(__file__).parent.parent


def train_seconds(config: str, steps: int, first: int, checkpoint_every: int, train_options: list[str]) -> float:
    """Trains; returns the seconds after the first `first` steps, with all saves except that after the last step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", "--config", config, "--workdir", f"{folder}/w"]
        command += ["--training.num-steps", str(steps), "--training.log-every", str(first)]
        command += ["--training.eval-every", "0", "--training.checkpoint-every", str(checkpoint_every)]
        command += ["--optimizer.schedule", "constant", *train_options]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        lines = Workdir(Path(folder, "w")).read_metrics()
    return lines[-1]["seconds"] - lines[first - 1]["seconds"]


def save_state(config: Config, rounds: int) -> None:
    """Saves the initial state of a config `rounds` times and prints a line for each save."""
    network = structure(config.model, config.tokenizer.vocab_size, config.tokenizer.vocab_size)
    state = initial_state(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), network.params), config)
    params, training = checkpoint_items(jax.block_until_ready(state))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((params, training)))
    with tempfile.TemporaryDirectory() as folder, closing(Checkpoints(Path(folder, "w"), 1)) as checkpoints:
        for step in range(1, rounds + 1):
            started = time.perf_counter()
            jax.tree.map(np.array, (params, training))
            copied = time.perf_counter()
            checkpoints.save(step, params, training, {}, None)
            returned = time.perf_counter()
            checkpoints.wait()
            copy, blocked, total = copied - started, returned - copied, time.perf_counter() - copied
            print(
                f"{size / 1e9:.2f} GB: plain copy {copy:.2f} s, training blocked {blocked:.2f} s, "
                f"save complete after {total:.2f} s"
            )


def main() -> None:
    """Prints a line for each round, and the share of training time that saving takes at the config's own interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/tiny.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument(
        "--state", action="store_true", help="only save the initial state of the config, without training"
    )
    options, train_options = parser.parse_known_args()
    if options.state:
        save_state(read_config(Path(options.config)), options.rounds)
        return
    first, saves = options.every, options.steps // options.every - 1
    save_costs, step_times = [], []
    for number in range(1, options.rounds + 1):
        with_saves, without = (
            train_seconds(options.config, options.steps, first, every, train_options)
            for every in (options.every, options.steps)
        )
        save_costs.append((with_saves - without) / saves)
        step_times.append(without / (options.steps - first))
        times = f"{with_saves:.2f} s with {saves} saves, {without:.2f} s with none"
        print(f"round {number}: {times}: {save_costs[-1]:.3f} s per save")
    save_cost, step_time = statistics.median(save_costs), statistics.median(step_times)
    every = read_config(Path(options.config)).training.checkpoint_every
    print(
        f"median {save_cost:.3f} s per save ({min(save_costs):.3f} to {max(save_costs):.3f}); "
        f"a step takes {step_time:.3f} s"
    )
    print(f"every {every} steps, as in {options.config}: {save_cost / (every * step_time):.2%} of the training time")


if __name__ == "__main__":
    main()
