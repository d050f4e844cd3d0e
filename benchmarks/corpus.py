"""A large corpus prepared and fed to training: seconds, pairs a second and memory, which must not grow with the corpus.

Run from the repository's root: python benchmarks/corpus.py [--lines 500000 5000000] [--folder F]

The corpus is made up: sentences of 5 to 25 words, drawn as often as words are in texts (Zipf's law), each translated by
another word. A process of its own prepares each size; then train.py trains on it, which says what a step consumes.
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

from data.mixture import open_training_corpora
from options.command_line import parse
from options.config_files import read_config
from options.schema import Config
from runs.workdir import Workdir
from training.preparation import open_with_tokenizer, prepare

ROOT = Path(__file__).parent.parent

T = TypeVar("T")
WORDS = 50_000
SENTENCES = 10_000  # made at a time
BATCHES = 300  # that are fed and counted
STEPS = 40  # of training, of which the last three quarters count


def write_corpus(lines: int, source: Path, target: Path) -> None:
    """Writes so many pairs, the same ones for the same number."""
    rng = np.random.default_rng(1)
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choice(syllables, size=rng.integers(1, 5))) for _ in range(2 * WORDS)]
    likely = np.cumsum(1.0 / np.arange(3, WORDS + 3))
    with source.open("w") as sources, target.open("w") as targets:
        for begun in range(0, lines, SENTENCES):
            lengths = rng.integers(5, 26, size=min(SENTENCES, lines - begun))
            drawn = np.searchsorted(likely, rng.random(lengths.sum()) * likely[-1])
            for sentence in np.split(drawn, np.cumsum(lengths)[:-1]):
                sources.write(" ".join(words[i] for i in sentence) + "\n")
                targets.write(" ".join(words[WORDS + i] for i in sentence) + "\n")


def measured(phase: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """What the phase returns, its seconds, and the most memory that was the process's own meanwhile, in bytes; pages
    of files, which the system takes back when it needs them, are in the resident memory only."""
    peaks = {"own": 0.0, "resident": 0.0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
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
        ended.set()
        watcher.join()
    return result, {"seconds": seconds, **peaks}


def corpus_options(folder: Path) -> list[str]:
    """The options of train.py that name the corpus."""
    files = ["--data.name", "text", "--data.train-source", str(folder / "text.en")]
    files += ["--data.train-target", str(folder / "text.xx"), "--data.target-language", "xx"]
    return [*files, "--data.cache-directory", str(folder / "cache")]


def work(base: Config, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """The phases of preparing the corpus in the folder, and of feeding from it."""
    model_file = folder / "tokenizer.model"
    config = parse(Config, corpus_options(folder), default=base, description="")
    _, found = measured(lambda: open_training_corpora(config.data))
    yield "read, checked and stored", found
    (_, _, (model,)), found = measured(lambda: open_with_tokenizer(config, None))
    yield "tokenizer trained", found
    model_file.write_bytes(model)
    tokenizer = config.tokenizer.model_copy(update={"model_file": model_file})
    config = config.model_copy(update={"tokenizer": tokenizer})
    prepared, found = measured(lambda: prepare(config, folder / "none"))
    yield "tokenized", found

    def feed() -> int:
        with closing(prepared.batches()) as batches:
            return sum(int(np.count_nonzero(next(batches).rows.target_out)) for _ in range(BATCHES))

    tokens, found = measured(feed)
    yield "fed", found | {"tokens": tokens}


def train(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """A run of train.py on the prepared corpus: seconds from its start to the first step, without those of compilation,
    real target tokens a second, and the share of time that the device waits for them."""
    workdir = folder / "run"
    command = [sys.executable, "train.py", "--config", str(options.config), *corpus_options(folder)]
    command += ["--workdir", str(workdir), "--training.num-steps", str(STEPS)]
    command += ["--training.log-every", "5", "--training.eval-every", "0"]
    command += ["--tokenizer.model-file", str(folder / "tokenizer.model")]
    started = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        under_way = next(line for line in process.stderr if "is under way" in line)
        seconds = time.perf_counter() - started - float(under_way.split()[-2])
        process.stderr.read()
    lines = Workdir(workdir).read_metrics()[STEPS // 4 :]
    medians = {name: statistics.median(line[name] for line in lines) for name in ("tokens_per_second", "waiting")}
    return {"first_step": seconds} | medians


def measure(lines: int, options: argparse.Namespace) -> None:
    """Prints the rows of one size."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_corpus(lines, folder / "text.en", folder / "text.xx")
        size = sum(os.path.getsize(folder / f"text.{side}") for side in ("en", "xx")) / 1e6
        print(f"\n{lines:,} pairs of lines, {size:,.0f} MB:\n")
        print("| | seconds | pairs/s | own memory at most, MB | with pages of files, MB |\n|---|---|---|---|---|")
        command = [sys.executable, __file__, "--config", str(options.config), "--work", str(folder)]
        printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        found: dict[str, dict[str, float]] = {}
        for phase, numbers in map(json.loads, printed.splitlines()):
            found[phase] = numbers
            pairs = "" if phase == "fed" else f"{lines / numbers['seconds']:,.0f}"
            memory = f"{numbers['own'] / 1e6:,.0f} | {numbers['resident'] / 1e6:,.0f}"
            print(f"| {phase} | {numbers['seconds']:,.1f} | {pairs} | {memory} |")
        rate = found["fed"]["tokens"] / found["fed"]["seconds"]
        consumed = train(options, folder)
        print(
            f"\nFed: {rate:,.0f} target tokens a second. {options.config.stem} consumes "
            f"{consumed['tokens_per_second']:,.0f}; its device waits for them {consumed['waiting']:.2%} of the time. "
            f"From the start of train.py to its first step: {consumed['first_step']:.1f} s beside compilation."
        )


def main() -> None:
    """Prints a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, nargs="+", default=[500_000, 5_000_000])
    parser.add_argument("--config", type=Path, default=Path("benchmarks/configs/width_128.toml"))
    parser.add_argument("--folder", type=Path, help="where there is room: 2 GB for 5,000,000 lines")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for path in filter(None, (options.config, options.folder)):
        if not path.exists():
            parser.error(f"{path}: there is no such file or folder")
    if options.work:
        for phase in work(read_config(options.config), options.work):
            print(json.dumps(phase), flush=True)
        return
    for lines in options.lines:
        measure(lines, options)


if __name__ == "__main__":
    main()
