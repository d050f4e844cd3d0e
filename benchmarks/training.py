"""Training speed beside a plain PyTorch loop: the same data, sizes and options, in turn, several rounds in one run.

Run from the repository's root, with the extra `bench` installed (pip install -e '.[bench]'):
  python benchmarks/training.py --directory MULTI30K [--rounds 5] [--steps 60] [--variants] [--config FILE ...]

Each round runs train.py as a user would, and benchmarks/pytorch_training.py; every program starts anew. Counted are
real target tokens, without padding, of the steps after the first ones.
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
WARM_UP = 10  # steps that do not count: compilation, memory that is touched for the first time
VARIANTS = {"Adam one operation after the other": ["--unfused"], "torch.compile": ["--compile"]}


def run(command: Sequence[str], first_step: str | None = None, **environment: str) -> tuple[str, float, float]:
    """Runs a program; what it printed, its peak memory in bytes, and the seconds until stderr held `first_step`."""
    started, seen = time.time(), float("nan")
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    told: list[str] = []

    def listen() -> None:
        nonlocal seen
        assert process.stderr
        for line in process.stderr:
            told.append(line)
            if first_step and first_step in line:
                seen = time.time() - started

    listener = threading.Thread(target=listen)
    listener.start()
    assert process.stdout
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    listener.join()
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(told)}")
    return printed, usage.ru_maxrss * 1024, seen


def ours(config: Path, folder: Path, options: argparse.Namespace, tokenizer: Path | None = None) -> dict[str, float]:
    """A run of train.py; the first one trains its tokenizer and compiles, later ones are given both."""
    workdir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    length = ["--training.num-steps", str(options.steps), "--training.log-every", str(WARM_UP)]
    command = [sys.executable, "train.py", "--config", str(config), "--workdir", str(workdir), *length]
    command += ["--data.directory", str(options.directory)]
    command += ["--tokenizer.model-file", str(tokenizer)] if tokenizer else []
    _, memory, first = run(command, "step 1 is under way", JAX_COMPILATION_CACHE_DIR=str(folder / "compiled"))
    lines = Workdir(workdir).read_metrics()
    counted = lines[WARM_UP:]
    seconds = lines[-1]["seconds"] - lines[WARM_UP - 1]["seconds"]
    return {
        "tokens_per_second": sum(line["tokens"] for line in counted) / seconds,
        "step_seconds": seconds / len(counted),
        "real": statistics.mean(line["real_tokens"] for line in counted),
        "waiting": statistics.mean(line["waiting"] for line in counted),
        "first_step_seconds": first,
        "programs": counted[-1]["programs_compiled"],
        "compile_seconds": counted[-1]["compile_seconds"],
        "memory": memory,
        "tokens_per_step": statistics.mean(line["tokens"] for line in counted),
    }


def theirs(config: Path, tokens: Path, vocab_size: int, options: argparse.Namespace, *how: str) -> dict[str, float]:
    """A run of the PyTorch loop."""
    command = [sys.executable, "benchmarks/pytorch_training.py", "--config", str(config), "--tokens", str(tokens)]
    command += ["--vocab-size", str(vocab_size), "--steps", str(options.steps), "--warm-up", str(WARM_UP), *how]
    printed, memory, _ = run([*command, "--started", str(time.time())])
    found = json.loads(printed)
    return found | {"memory": memory, "real": (found["source_real"] + found["target_real"]) / 2}


def write_tokens(workdir: Path, path: Path) -> int:
    """The tokenized training pairs of a run for the other program; returns the size of the vocabulary."""
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
    """All rounds of one config, and what they come to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold = ours(config, folder, options)
        (workdir,) = folder.glob("*/run")
        vocab_size = write_tokens(workdir, folder / "tokens.npz")
        read = read_workdir_config(workdir)
        variants = VARIANTS if options.variants else {}
        rounds: list[dict[str, Any]] = []
        for number in range(1, options.rounds + 1):
            found: dict[str, Any] = {
                "rate": matrix_product_rate(),
                "ours": ours(config, folder, options, workdir / "tokenizer.model"),
                "theirs": theirs(config, folder / "tokens.npz", vocab_size, options),
            }
            for variant, how in variants.items():
                found[variant] = theirs(config, folder / "tokens.npz", vocab_size, options, *how)
            rounds.append(found)
            speeds = ", ".join(f"{k} {v['tokens_per_second']:,.0f}" for k, v in found.items() if k != "rate")
            print(f"{config.stem}, round {number}: {speeds} target tokens/s", file=sys.stderr)

    def median(side: str, what: str) -> float:
        return statistics.median(found[side][what] for found in rounds)

    def ratios(one: str, other: str) -> str:
        values = sorted(found[one]["tokens_per_second"] / found[other]["tokens_per_second"] for found in rounds)
        return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"

    length = read.data.row_length
    step = training_flops(read.model, vocab_size, length, length) * read.rows_per_batch
    a_token = step / median("ours", "tokens_per_step")
    rate = statistics.median(found["rate"] for found in rounds)
    used = statistics.median(step / found["ours"]["step_seconds"] / found["rate"] for found in rounds)
    print(f"\n{config} ({options.rounds} rounds of {options.steps} steps, {vocab_size:,} pieces)\n")
    print("| | Lingua Flax | PyTorch |\n|---|---|---|")
    for title, what, shown in (
        ("real target tokens a second", "tokens_per_second", "{:,.0f}"),
        ("seconds a step", "step_seconds", "{:.3f}"),
        ("share of positions that hold a token, both sides", "real", "{:.1%}"),
        ("peak memory, MB", "memory", "{:,.0f}"),
        ("start to first step, s (programs in the cache)", "first_step_seconds", "{:.1f}"),
    ):
        scale = 1e-6 if what == "memory" else 1.0
        print(
            f"| {title} | " + " | ".join(shown.format(scale * median(side, what)) for side in ("ours", "theirs")) + " |"
        )
    print(f"| the same, with the tokenizer to be trained and all to be compiled | {cold['first_step_seconds']:.1f} | |")
    print(f"| the device waits for the host, at most | {median('ours', 'waiting'):.2%} | |")
    print(f"| programs compiled, seconds | {cold['programs']:.0f}, {cold['compile_seconds']:.1f} | |")
    print(
        f"\nRatio {ratios('ours', 'theirs')}. {a_token / 1e6:.1f} million operations a real target token; a step does"
    )
    print(f"{used:.0%} of what matrix products of 2048 do here ({rate / 1e9:.0f} billion operations a second).")
    for variant in variants:
        print(f"PyTorch with {variant}: {ratios(variant, 'theirs')} times its speed.")


def main() -> None:
    """Prints a table for each config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", default=CONFIGS)
    parser.add_argument("--directory", type=Path, required=True, help="the folder that has Multi30k's files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--variants", action="store_true", help="the PyTorch loop's other settings too")
    options = parser.parse_args()
    if not importlib.util.find_spec("torch"):
        parser.error("PyTorch is not installed: pip install -e '.[bench]'")
    if not options.directory.is_dir():
        parser.error(f"--directory {options.directory}: there is no such folder")
    if missing := [str(config) for config in options.config if not config.is_file()]:
        parser.error(f"--config {', '.join(missing)}: there is no such file")
    for config in options.config:
        measure(config, options)


if __name__ == "__main__":
    main()
