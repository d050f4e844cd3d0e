"""Measures how much keeping freed memory in the process speeds up training: runs with and without it, in alternation.

Run from the repository root: python benchmarks/memory.py [--rounds 3] [--config configs/tiny.toml] [--steps 150]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from runs.workdir import Workdir

ROOT = Path(__file__).parent.parent

TRAIN = """
import runpy, sys
sys.path.insert(0, ".")
sys.argv = sys.argv[1:]
{}
runpy.run_path("train.py", run_name="__main__")
"""
WITHOUT = "import host.malloc; host.malloc.keep_freed_memory = lambda: None"


def tokens_per_second(program: str, config: str, steps: int) -> float:
    """Returns the median rate of a short run, without its first log interval, which includes compilation."""
    with tempfile.TemporaryDirectory() as folder:
        run_options = ["--training.num-steps", str(steps), "--training.log-every", "25", "--training.eval-every", "0"]
        run_options += ["--optimizer.schedule", "constant"]
        command = [sys.executable, "-c", program, "train.py", "--config", config, "--workdir", f"{folder}/w"]
        subprocess.run([*command, *run_options], cwd=ROOT, check=True, capture_output=True)
        lines = Workdir(Path(folder, "w")).read_metrics()
    return statistics.median(line["tokens_per_second"] for line in lines[25:])


def main() -> None:
    """Prints a line for each round and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--config", default="configs/tiny.toml")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    ratios = []
    for number in range(1, options.rounds + 1):
        kept, returned = (
            tokens_per_second(TRAIN.format(setup), options.config, options.steps) for setup in ("", WITHOUT)
        )
        ratios.append(kept / returned)
        print(
            f"round {number}: memory kept {kept:,.0f}, memory returned to the kernel {returned:,.0f} target tokens/s, "
            f"ratio {ratios[-1]:.2f}"
        )
    print(f"median ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
