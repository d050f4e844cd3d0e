"""Compares training speed with a plain PyTorch loop: the same data, sizes and options, in alternation.

Run from the repository root with the extra `bench` installed (pip install -e '.[bench]'):
  python benchmarks/training.py --directory MULTI30K [--rounds 5] [--steps 60] [--variants] [--config FILE ...]

Each round runs train.py as a user would, then benchmarks/pytorch_training.py, each in a new process. Speeds are in
target tokens per second; padding and the first steps are not counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import matrix_product_rate

from data.tokenized_pairs import TokenizedPairs
from model.flops import training_flops
from options.config_files import read_workdir_config
from runs.workdir import Workdir
from training.preparation import prepare

ROOT = Path(__file__).parent.parent

CONFIGS = (Path("benchmarks/configs/width_256.toml"), Path("benchmarks/configs/width_128.toml"))
WARM_UP = 10  # first steps, not measured: they compile and touch memory for the first time
VARIANTS = {"unfused Adam": ["--unfused"], "torch.compile": ["--compile"]}


def run(command: Sequence[str], first_step: str | None = None, **environment: str) -> tuple[str, float, float]:
    """Runs a program with additional environment variables.

    Returns:
      Its stdout, its peak memory in bytes, and the seconds until a line with `first_step` appeared on stderr (NaN if
      none did).

    Raises:
      SystemExit: the program failed.
    """
    started, first_step_seconds = time.time(), float("nan")
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    stderr_lines: list[str] = []

    def read_stderr() -> None:
        nonlocal first_step_seconds
        assert process.stderr
        for line in process.stderr:
            stderr_lines.append(line)
            if first_step and first_step in line:
                first_step_seconds = time.time() - started

    reader = threading.Thread(target=read_stderr)
    reader.start()
    assert process.stdout
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    reader.join()
    if status:
        raise SystemExit(f"error: {' '.join(command)} failed:\n{''.join(stderr_lines)}")
    return output, usage.ru_maxrss * 1024, first_step_seconds


def run_lingua_flax(
    config: Path, folder: Path, options: argparse.Namespace, tokenizer: Path | None = None
) -> dict[str, float]:
    """Runs train.py and returns its measurements.

    All runs share a compilation cache in the folder. Without a tokenizer file, the run trains its own.
    """
    workdir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [sys.executable, "train.py", "--config", str(config), "--workdir", str(workdir)]
    command += ["--training.num-steps", str(options.steps), "--training.log-every", str(WARM_UP)]
    command += ["--data.directory", str(options.directory)]
    command += ["--tokenizer.model-file", str(tokenizer)] if tokenizer else []
    environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    _, memory, first_step_seconds = run(command, "step 1 is under way", **environment)
    lines = Workdir(workdir).read_metrics()
    measured = lines[WARM_UP:]
    seconds = lines[-1]["seconds"] - lines[WARM_UP - 1]["seconds"]
    return {
        "tokens_per_second": sum(line["tokens"] for line in measured) / seconds,
        "step_seconds": seconds / len(measured),
        "real": statistics.mean(line["real_tokens"] for line in measured),
        "waiting": statistics.mean(line["waiting"] for line in measured),
        "first_step_seconds": first_step_seconds,
        "programs": measured[-1]["programs_compiled"],
        "compile_seconds": measured[-1]["compile_seconds"],
        "memory": memory,
        "tokens_per_step": statistics.mean(line["tokens"] for line in measured),
    }


def run_pytorch(
    config: Path, tokens: Path, vocab_size: int, options: argparse.Namespace, *variant: str
) -> dict[str, float]:
    """Runs the PyTorch loop, with the options of a variant if given, and returns its measurements."""
    command = [sys.executable, "benchmarks/pytorch_training.py", "--config", str(config), "--tokens", str(tokens)]
    command += ["--vocab-size", str(vocab_size), "--steps", str(options.steps), "--warm-up", str(WARM_UP), *variant]
    output, memory, _ = run([*command, "--started", str(time.time())])
    measurements = json.loads(output)
    real = (measurements["source_real"] + measurements["target_real"]) / 2
    return measurements | {"memory": memory, "real": real}


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


def measure(config: Path, options: argparse.Namespace) -> None:
    """Runs all rounds of one config and prints a table of their medians."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold = run_lingua_flax(config, folder, options)  # trains the tokenizer and compiles
        (workdir,) = folder.glob("*/run")
        vocab_size = write_tokens(workdir, folder / "tokens.npz")
        run_config = read_workdir_config(workdir)
        variants = VARIANTS if options.variants else {}
        rounds: list[dict[str, Any]] = []
        for number in range(1, options.rounds + 1):
            measurements: dict[str, Any] = {
                "rate": matrix_product_rate(),
                "Lingua Flax": run_lingua_flax(config, folder, options, workdir / "tokenizer.model"),
                "PyTorch": run_pytorch(config, folder / "tokens.npz", vocab_size, options),
            }
            for variant, variant_options in variants.items():
                measurements[variant] = run_pytorch(
                    config, folder / "tokens.npz", vocab_size, options, *variant_options
                )
            rounds.append(measurements)
            speeds = ", ".join(f"{k} {v['tokens_per_second']:,.0f}" for k, v in measurements.items() if k != "rate")
            print(f"{config.stem}, round {number}: {speeds} target tokens/s", file=sys.stderr)

    def median(program: str, quantity: str) -> float:
        return statistics.median(measurements[program][quantity] for measurements in rounds)

    def speed_ratio(program: str, reference: str) -> str:
        values = sorted(
            measurements[program]["tokens_per_second"] / measurements[reference]["tokens_per_second"]
            for measurements in rounds
        )
        return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"

    length = run_config.data.row_length
    flops_per_step = training_flops(run_config.model, vocab_size, length, length) * run_config.rows_per_batch
    flops_per_token = flops_per_step / median("Lingua Flax", "tokens_per_step")
    rate = statistics.median(measurements["rate"] for measurements in rounds)
    utilization = statistics.median(
        flops_per_step / measurements["Lingua Flax"]["step_seconds"] / measurements["rate"] for measurements in rounds
    )
    print(f"\n{config} ({options.rounds} rounds of {options.steps} steps, {vocab_size:,} pieces)\n")
    print("| | Lingua Flax | PyTorch |\n|---|---|---|")
    for title, quantity, number_format in (
        ("target tokens/s, without padding", "tokens_per_second", "{:,.0f}"),
        ("seconds per step", "step_seconds", "{:.3f}"),
        ("share of positions that are not padding, both sides", "real", "{:.1%}"),
        ("peak memory, MB", "memory", "{:,.0f}"),
        ("start to first step, s (compiled programs in the cache)", "first_step_seconds", "{:.1f}"),
    ):
        scale = 1e-6 if quantity == "memory" else 1.0
        cells = [number_format.format(scale * median(program, quantity)) for program in ("Lingua Flax", "PyTorch")]
        print(f"| {title} | " + " | ".join(cells) + " |")
    print(f"| start to first step, s (tokenizer training, empty cache) | {cold['first_step_seconds']:.1f} | |")
    print(f"| device waiting for the host, upper bound | {median('Lingua Flax', 'waiting'):.2%} | |")
    print(f"| programs compiled, compile time in s | {cold['programs']:.0f}, {cold['compile_seconds']:.1f} | |")
    print(f"\nSpeed ratio {speed_ratio('Lingua Flax', 'PyTorch')}.")
    print(f"{flops_per_token / 1e6:.1f} million operations per target token; a step reaches {utilization:.0%} of the")
    print(f"rate of a 2048 x 2048 matrix product on this machine ({rate / 1e9:.0f} billion operations/s).")
    for variant in variants:
        print(f"PyTorch with {variant}: {speed_ratio(variant, 'PyTorch')} times the speed of the default settings.")


def main() -> None:
    """Prints a table for each config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", default=CONFIGS)
    parser.add_argument("--directory", type=Path, required=True, help="folder with the files of Multi30k")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--variants", action="store_true", help="also run the PyTorch loop with its other settings")
    options = parser.parse_args()
    if not importlib.util.find_spec("torch"):
        parser.error("PyTorch is not installed: pip install -e '.[bench]'")
    if not options.directory.is_dir():
        parser.error(f"--directory {options.directory}: no such folder")
    if missing := [str(config) for config in options.config if not config.is_file()]:
        parser.error(f"--config {', '.join(missing)}: no such file")
    for config in options.config:
        measure(config, options)


if __name__ == "__main__":
    main()
