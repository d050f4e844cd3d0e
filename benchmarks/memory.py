"""What keeping freed memory in the process gains: training steps with and without it, in turn.

Run from the repository's root: python benchmarks/memory.py [--rounds 3] [--config configs/tiny.toml] [--steps 150]
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
    """Median rate over a short run's log intervals, the first (with its compilation) left out."""
    with tempfile.TemporaryDirectory() as folder:
        length = ["--training.num-steps", str(steps), "--training.log-every", "25", "--training.eval-every", "0"]
        length += ["--optimizer.schedule", "constant"]
        command = [sys.executable, "-c", program, "train.py", "--config", config, "--workdir", f"{folder}/w", *length]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        lines = Workdir(Path(folder, "w")).read_metrics()
    return statistics.median(line["tokens_per_second"] for line in lines[25:])


def main() -> None:
    """Prints a line a round and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--config", default="configs/tiny.toml")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    ratios = []
    for number in range(1, options.rounds + 1):
        kept, returned = (tokens_per_second(TRAIN.format(how), options.config, options.steps) for how in ("", WITHOUT))
        ratios.append(kept / returned)
        print(f"round {number}: kept {kept:,.0f}, given back {returned:,.0f} target tokens/s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
