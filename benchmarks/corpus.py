"""Measures the time and memory that it takes to prepare a large corpus and to feed it to training.

Run from the repository root: python benchmarks/corpus.py [--lines 5000000] [--folder F]

The corpus is synthetic: sentences of 5 to 25 words whose frequencies follow Zipf's law, translated word by word.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np

from lingua_flax.commands.main import exit_status
from lingua_flax.data.mixture import open_training_corpora
from lingua_flax.options.command_line import build_with_config, parse
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config
from lingua_flax.training.preparation import open_with_tokenizer, prepare

T = TypeVar("T")
WORDS = 50_000  # vocabulary of each language
SENTENCES = 10_000  # generated at a time
BATCHES = 300  # fed and counted


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
    """Returns the result of a phase, its `seconds`, and the peak memory of the process in bytes.

    That is `own`, anonymous memory, and `resident`, also pages of mapped files, which the kernel reclaims when needed.
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


def run_phases(base: Config, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Prepares the corpus in the folder and feeds batches from it; yields each phase's name and measurements."""
    model_file = folder / "tokenizer.model"
    files = ["--data.name", "text", "--data.train-source", str(folder / "text.en")]
    files += ["--data.train-target", str(folder / "text.xx"), "--data.target-language", "xx"]
    files += ["--data.cache-directory", str(folder / "cache")]
    config, _ = build_with_config(Config, parse(Config, files, ""), base)
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
    yield f"fed, {tokens / measurements['seconds']:,.0f} target tokens/s", measurements


def command(argv: Sequence[str]) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--config", type=Path, default=Path("benchmarks/configs/width_128.toml"))
    parser.add_argument("--folder", type=Path, help="folder for temporary files: 2 GB for 5,000,000 lines")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_corpus(options.lines, folder / "text.en", folder / "text.xx")
        size = sum(os.path.getsize(folder / f"text.{side}") for side in ("en", "xx")) / 1e6
        print(f"{options.lines:,} sentence pairs, {size:,.0f} MB:\n")
        print("| | seconds | peak anonymous memory, MB | peak resident memory, MB |\n|---|---|---|---|")
        for phase, numbers in run_phases(read_config(options.config), folder):
            memory = f"{numbers['own'] / 1e6:,.0f} | {numbers['resident'] / 1e6:,.0f}"
            print(f"| {phase} | {numbers['seconds']:,.1f} | {memory} |", flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
