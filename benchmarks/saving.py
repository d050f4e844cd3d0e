"""What saving costs: training steps with many checkpoints and with none, in turn; or how long one save holds up
training, beside a plain copy of the state.

Run from the repository's root:
  python benchmarks/saving.py [--config configs/tiny.toml] [--rounds 3] [--steps 300] [--every 50] [options of train.py]
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

from model.transformer import structure
from options.config_files import read_config
from options.schema import Config
from runs.checkpoint import Checkpoints
from runs.workdir import Workdir
from training.step import checkpoint_items, initial_state

ROOT = Path(__file__).parent.parent


def seconds(config: str, steps: int, first: int, checkpoint_every: int, options: list[str]) -> float:
    """Training time of the steps after the first ones, with the saves between them; that of the last step is later."""
    with tempfile.TemporaryDirectory() as folder:
        length = ["--training.num-steps", str(steps), "--training.log-every", str(first), "--training.eval-every", "0"]
        length += ["--training.checkpoint-every", str(checkpoint_every), "--optimizer.schedule", "constant"]
        command = [sys.executable, "train.py", "--config", config, "--workdir", f"{folder}/w", *length, *options]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        lines = Workdir(Path(folder, "w")).read_metrics()
    return lines[-1]["seconds"] - lines[first - 1]["seconds"]


def save_state(config: Config, rounds: int) -> None:
    """Prints a line for each save of a config's initial state."""
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
            copy, held_up, in_all = copied - started, returned - copied, time.perf_counter() - copied
            print(f"{size / 1e9:.2f} GB: a copy takes {copy:.2f} s, training stops {held_up:.2f} s, all {in_all:.2f} s")


def main() -> None:
    """Prints a line a round, and what that makes of the config's own interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/tiny.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--state", action="store_true", help="save the initial state of the config, and train nothing")
    options, others = parser.parse_known_args()
    if options.state:
        save_state(read_config(Path(options.config)), options.rounds)
        return
    first, saves = options.every, options.steps // options.every - 1
    costs, paces = [], []
    for number in range(1, options.rounds + 1):
        with_saves, without = (
            seconds(options.config, options.steps, first, every, others) for every in (options.every, options.steps)
        )
        costs.append((with_saves - without) / saves)
        paces.append(without / (options.steps - first))
        times = f"{with_saves:.2f} s with {saves} saves, {without:.2f} s with none"
        print(f"round {number}: {times}: {costs[-1]:.3f} s a save")
    cost, pace = statistics.median(costs), statistics.median(paces)
    every = read_config(Path(options.config)).training.checkpoint_every
    print(f"median {cost:.3f} s a save ({min(costs):.3f} to {max(costs):.3f}); a step takes {pace:.3f} s")
    print(f"every {every} steps, as in {options.config}: {cost / (every * pace):.2%} of the training time")


if __name__ == "__main__":
    main()
