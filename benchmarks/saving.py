"""What saving costs: training steps with many checkpoints and with none, in turn.

Run from the repository's root:
  python benchmarks/saving.py [--config configs/tiny.toml] [--rounds 3] [--steps 300] [--every 50] [options of train.py]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from configs.loading import read_config

ROOT = Path(__file__).parent.parent


def seconds(config: str, steps: int, first: int, checkpoint_every: int, options: list[str]) -> float:
    """Training time of the steps after the first ones, with the saves between them; that of the last step is later."""
    with tempfile.TemporaryDirectory() as folder:
        length = ["--training.num-steps", str(steps), "--training.log-every", str(first), "--training.eval-every", "0"]
        length += ["--training.checkpoint-every", str(checkpoint_every), "--optimizer.schedule", "constant"]
        command = [sys.executable, "train.py", "--config", config, "--workdir", f"{folder}/w", *length, *options]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        lines = [json.loads(line) for line in Path(folder, "w", "metrics.jsonl").read_text().splitlines()]
    return lines[-1]["seconds"] - lines[first - 1]["seconds"]


def main() -> None:
    """Prints a line a round, and what that makes of the config's own interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/tiny.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50)
    options, others = parser.parse_known_args()
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
