"""Compares training speed on a CPU with a PyTorch loop: the same data, sizes and options, in alternation.

Run from the repository root with the extra `bench` installed (pip install -e '.[bench]'):
  python benchmarks/pytorch_comparison.py --directory MULTI30K [--rounds 5] [--steps 60]

Each round runs lingua-flax train as a user would, then benchmarks/pytorch_training.py, each in a new process. Speeds
are in target tokens per second, end to end; padding and the first WARM_UP steps, which compile and touch memory for the
first time, are not counted. Other options are passed to lingua-flax train, for example --model.attention plain.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingua_flax.__main__ import exit_status
from lingua_flax.data.tokenized_pairs import TokenizedPairs
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.preparation import prepare

ROOT = Path(__file__).parent.parent
WARM_UP = 10  # steps
QUANTITIES = {  # title and format of each measurement
    "tokens_per_second": ("target tokens/s, without padding", "{:,.0f}"),
    "step_seconds": ("seconds per step", "{:.3f}"),
    "real": ("share of positions that are not padding, both sides", "{:.1%}"),
    "memory": ("peak memory, bytes", "{:,.0f}"),
}


def run_lingua_flax(workdir: Path, options: argparse.Namespace, others: Sequence[str]) -> dict[str, float]:
    """Runs lingua-flax train and returns its measurements."""
    command = [sys.executable, "train.py", "--config", str(options.config), "--workdir", str(workdir)]
    command += ["--training.num-steps", str(options.steps), "--training.log-every", str(WARM_UP)]
    command += ["--data.directory", str(options.directory), "--devices.platform", "cpu", *others]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(2)  # the command has printed the reason
    lines = Workdir(workdir).read_metrics()
    measured = lines[WARM_UP:]
    seconds = lines[-1]["seconds"] - lines[WARM_UP - 1]["seconds"]
    return {
        "tokens_per_second": sum(line["tokens"] for line in measured) / seconds,
        "step_seconds": seconds / len(measured),
        "real": statistics.mean(line["real_tokens"] for line in measured),
        "memory": usage.ru_maxrss * 1024,
    }


def run_pytorch(tokens: Path, vocab_size: int, options: argparse.Namespace) -> dict[str, float]:
    """Runs the PyTorch loop and returns its measurements."""
    command = [sys.executable, "benchmarks/pytorch_training.py", "--config", str(options.config)]
    command += ["--tokens", str(tokens), "--vocab-size", str(vocab_size)]
    command += ["--steps", str(options.steps), "--warm-up", str(WARM_UP)]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)


def write_tokens(workdir: Path, path: Path) -> int:
    """Writes the tokenized training pairs of a run for the PyTorch loop; returns the size of the vocabulary."""
    prepared = prepare(read_workdir_config(workdir), workdir)
    (corpus,) = prepared.planner.corpora
    assert isinstance(corpus, TokenizedPairs)
    pairs = [corpus[i] for i in range(len(corpus))]
    arrays: dict[str, Any] = {}
    for number, side in enumerate(("source", "target")):
        arrays[side] = np.concatenate([pair[number] for pair in pairs])
        arrays[f"{side}_ends"] = np.cumsum([len(pair[number]) for pair in pairs])
    np.savez(path, **arrays)
    return prepared.tokenizer.target_vocab_size


def command(argv: Sequence[str]) -> None:
    """Prints a table of the medians over all rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("benchmarks/configs/width_128.toml"))
    parser.add_argument("--directory", type=Path, required=True, help="folder with the files of Multi30k")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    options, others = parser.parse_known_args(argv)
    if not importlib.util.find_spec("torch"):
        parser.error("PyTorch is not installed: pip install -e '.[bench]'")
    if options.steps <= WARM_UP:
        parser.error(f"--steps {options.steps}: the first {WARM_UP} are not measured, so it must be larger")
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        tokens = Path(name, "tokens.npz")
        first = Path(name, "first")
        run_lingua_flax(first, options, others)  # trains the tokenizer, and fills the compilation cache
        vocab_size = write_tokens(first, tokens)
        others = [*others, "--tokenizer.model-file", str(first / "tokenizer.model")]
        for number in range(options.rounds):
            own = run_lingua_flax(Path(name, str(number)), options, others)
            rounds.append((own, run_pytorch(tokens, vocab_size, options)))
    print(f"{options.config} ({options.rounds} rounds of {options.steps} steps, {vocab_size:,} pieces)\n")
    print("| | Lingua Flax | PyTorch |\n|---|---|---|")
    for quantity, (title, number_format) in QUANTITIES.items():
        medians = (statistics.median(values[quantity] for values in program) for program in zip(*rounds, strict=True))
        print(f"| {title} | {' | '.join(map(number_format.format, medians))} |")
    ratios = sorted(own["tokens_per_second"] / other["tokens_per_second"] for own, other in rounds)
    print(f"\nSpeed ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}).")


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
