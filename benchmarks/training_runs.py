"""Training runs of ours and of the PyTorch loop, and their measurements; used by benchmarks/pytorch_comparison.py."""

from __future__ import annotations

import argparse
import dataclasses
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

from lingua_flax.data.tokenized_pairs import TokenizedPairs
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.preparation import prepare

ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Device:
    """How speeds are measured on a kind of device.

    Attributes:
      configs: the default configs, in benchmarks/configs.
      steps: the default number of steps of a run.
      warm_up: the number of first steps that are not measured: they compile and touch memory for the first time.
    """

    configs: tuple[str, ...]
    steps: int
    warm_up: int


DEVICES = {
    "cpu": Device(("width_256", "width_128"), steps=60, warm_up=10),
    "gpu": Device(("base", "width_256", "width_128"), steps=600, warm_up=100),
}


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
    """Runs lingua-flax train and returns its measurements.

    All runs share a compilation cache in the folder. Without a tokenizer file, the run trains its own.
    """
    workdir, warm_up = Path(tempfile.mkdtemp(dir=folder)) / "run", DEVICES[options.device].warm_up
    command = [sys.executable, "train.py", "--config", str(config), "--workdir", str(workdir)]
    command += ["--training.num-steps", str(options.steps), "--training.log-every", str(warm_up)]
    command += ["--data.directory", str(options.directory), "--devices.platform", options.device]
    command += ["--tokenizer.model-file", str(tokenizer)] if tokenizer else []
    command += options.train_options
    environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    _, memory, first_step_seconds = run(command, "step 1 started", **environment)
    lines = Workdir(workdir).read_metrics()
    measured = lines[warm_up:]
    seconds = lines[-1]["seconds"] - lines[warm_up - 1]["seconds"]
    return {
        "tokens_per_second": sum(line["tokens"] for line in measured) / seconds,
        "step_seconds": seconds / len(measured),
        "real": statistics.mean(line["real_tokens"] for line in measured),
        "idle": statistics.mean(line["idle"] for line in measured),
        "first_step_seconds": first_step_seconds,
        "programs": measured[-1]["programs_compiled"],
        "compile_seconds": measured[-1]["compile_seconds"],
        "memory": memory,
        "tokens_per_step": statistics.mean(line["tokens"] for line in measured),
    }


def run_pytorch(config: Path, tokens: Path, vocab_size: int, options: argparse.Namespace) -> dict[str, float]:
    """Runs the PyTorch loop and returns its measurements.

    All runs share a compilation cache in the folder of the tokens.
    """
    command = [sys.executable, "benchmarks/pytorch_training.py", "--config", str(config), "--tokens", str(tokens)]
    command += ["--vocab-size", str(vocab_size), "--steps", str(options.steps), "--device", options.device]
    command += ["--warm-up", str(DEVICES[options.device].warm_up)]
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tokens.parent / "inductor")}
    output, memory, _ = run([*command, "--started", str(time.time())], **environment)
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
