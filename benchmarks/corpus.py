"""Measures the time, throughput and memory needed to prepare a large corpus and to feed it to training.

Memory must not grow with the size of the corpus.

Run from the repository root: python benchmarks/corpus.py [--lines 500000 5000000] [--folder F]

The corpus is synthetic: sentences of 5 to 25 words whose frequencies follow Zipf's law, translated word by word. Each
corpus size is prepared in a separate process. A run on the corpus then shows how many tokens per second
training consumes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np

from lingua_flax.data.mixture import open_training_corpora
from lingua_flax.options.command_line import build_with_config, parse
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.preparation import open_with_tokenizer, prepare

ROOT = Path(__file__).parent.parent

T = TypeVar("T")
WORDS = 50_000  # vocabulary of each language
SENTENCES = 10_000  # generated at a time
BATCHES = 300  # fed and counted
STEPS = 40  # training steps; the first quarter is not measured


def write_corpus(lines: int, source: Path, target: Path) -> None:
    """Writes a synthetic corpus of `lines` sentence pairs; the same number always yields the same corpus."""
    rng = np.random.default_rng(1)
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choice(syllables, size=rng.integers(1, 5))) for _ in range(2 * WORDS)]
    cumulative_weights = np.cumsum(1.0 / np.arange(3, WORDS + 3))
    with source.open("w") as sources, target.open("w") as targets:
        for first_line in range(0, lines, SENTENCES):
            lengths = rng.integers(5, 26, size=min(SENTENCES, lines - first_line))
            word_ids = np.searchsorted(cumulative_weights, rng.random(lengths.sum()) * cumulative_weights[-1])
            for sentence in np.split(word_ids, np.cumsum(lengths)[:-1]):
                sources.write(" ".join(words[i] for i in sentence) + "\n")
                targets.write(" ".join(words[WORDS + i] for i in sentence) + "\n")


def measure_phase(phase: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Runs a phase and measures its time and memory.

    Returns:
      The result of the phase, and its measurements: `seconds`, and the peak memory of the process in bytes, `own`
      (anonymous memory) and `resident` (also pages of mapped files, which the kernel reclaims when needed).
    """
    peaks = {"own": 0.0, "resident": 0.0}
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.05):
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            for name, field in (("own", "RssAnon"), ("resident", "VmRSS")):
                peaks[name] = max(peaks[name], 1024.0 * int(status[field].split()[0]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    try:
        result = phase()
    finally:
        seconds = time.perf_counter() - started
        finished.set()
        watcher.join()
    return result, {"seconds": seconds, **peaks}


def corpus_options(folder: Path) -> list[str]:
    """Returns the options of lingua-flax train that select the corpus in a folder."""
    files = ["--data.name", "text", "--data.train-source", str(folder / "text.en")]
    files += ["--data.train-target", str(folder / "text.xx"), "--data.target-language", "xx"]
    return [*files, "--data.cache-directory", str(folder / "cache")]


def run_phases(base: Config, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Prepares the corpus in the folder and feeds batches from it; yields each phase's name and measurements."""
    model_file = folder / "tokenizer.model"
    config, _ = build_with_config(Config, parse(Config, corpus_options(folder), ""), base)
    _, measurements = measure_phase(lambda: open_training_corpora(config.data))
    yield "read, checked and stored", measurements
    (_, _, (model,)), measurements = measure_phase(lambda: open_with_tokenizer(config, None))
    yield "tokenizer trained", measurements
    model_file.write_bytes(model)
    tokenizer = config.tokenizer.model_copy(update={"model_file": model_file})
    config = config.model_copy(update={"tokenizer": tokenizer})
    prepared, measurements = measure_phase(lambda: prepare(config, folder / "none"))
    yield "tokenized", measurements

    def feed() -> int:
        with closing(prepared.batches()) as batches:
            return sum(int(np.count_nonzero(next(batches).rows.target_out)) for _ in range(BATCHES))

    tokens, measurements = measure_phase(feed)
    yield "fed", measurements | {"tokens": tokens}


def train(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Runs lingua-flax train on the prepared corpus.

    Returns:
      `first_step`: seconds from the start of the command to its first step, without compilation; and the medians of
      `tokens_per_second`, target tokens without padding, and `idle`, the share of time in which the device waits
      for batches.
    """
    workdir = folder / "run"
    command = [sys.executable, "train.py", "--config", str(options.config), *corpus_options(folder)]
    command += ["--workdir", str(workdir), "--training.num-steps", str(STEPS)]
    command += ["--training.log-every", "5", "--training.eval-every", "0"]
    command += ["--tokenizer.model-file", str(folder / "tokenizer.model")]
    started = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        first_step_line = next(line for line in process.stderr if " started: " in line)
        # The line ends in the compilation time: "..., 8.2 s".
        seconds = time.perf_counter() - started - float(first_step_line.split()[-2])
        process.stderr.read()
    lines = Workdir(workdir).read_metrics()[STEPS // 4 :]
    medians = {name: statistics.median(line[name] for line in lines) for name in ("tokens_per_second", "idle")}
    return {"first_step": seconds} | medians


def measure_size(lines: int, options: argparse.Namespace) -> None:
    """Measures a corpus of `lines` sentence pairs and prints a table."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_corpus(lines, folder / "text.en", folder / "text.xx")
        size = sum(os.path.getsize(folder / f"text.{side}") for side in ("en", "xx")) / 1e6
        print(f"\n{lines:,} sentence pairs, {size:,.0f} MB:\n")
        print("| | seconds | pairs/s | peak anonymous memory, MB | peak resident memory, MB |\n|---|---|---|---|---|")
        command = [sys.executable, __file__, "--config", str(options.config), "--work", str(folder)]
        output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        measurements: dict[str, dict[str, float]] = {}
        for phase, numbers in map(json.loads, output.splitlines()):
            measurements[phase] = numbers
            pairs = "" if phase == "fed" else f"{lines / numbers['seconds']:,.0f}"
            memory = f"{numbers['own'] / 1e6:,.0f} | {numbers['resident'] / 1e6:,.0f}"
            print(f"| {phase} | {numbers['seconds']:,.1f} | {pairs} | {memory} |")
        rate = measurements["fed"]["tokens"] / measurements["fed"]["seconds"]
        training = train(options, folder)
        print(
            f"\nFeeding supplies {rate:,.0f} target tokens/s. Training {options.config.stem} consumes "
            f"{training['tokens_per_second']:,.0f} target tokens/s; its device waits for batches "
            f"{training['idle']:.2%} of the time. From the start of lingua-flax train to its first step, without "
            f"compilation: {training['first_step']:.1f} s."
        )


def main() -> None:
    """Prints a table for each corpus size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, nargs="+", default=[500_000, 5_000_000])
    parser.add_argument("--config", type=Path, default=Path("benchmarks/configs/width_128.toml"))
    parser.add_argument("--folder", type=Path, help="folder for temporary files: 2 GB for 5,000,000 lines")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for path in filter(None, (options.config, options.folder)):
        if not path.exists():
            parser.error(f"{path}: no such file or folder")
    if options.work:
        for phase in run_phases(read_config(options.config), options.work):
            print(json.dumps(phase), flush=True)
        return
    for lines in options.lines:
        measure_size(lines, options)


if __name__ == "__main__":
    main()
