"""Compares decoding speed: networks, and CTranslate2, on the same sentences, in alternation, for several rounds.

Run from the repository root:
  python -m benchmarks.decoding --workdir STUDENT TEACHER --input MULTI30K/test_2016_flickr.en.gz [--rounds 3]

With --ctranslate2 W, CTranslate2 translates too, with the network of that workdir, in float32 and in int8. This needs
the extra `export` (pip install -e '.[export]') and a model that CTranslate2 can represent, such as that of
benchmarks/configs/width_128.toml.

Each system runs in a separate process that loads the model once; only one of them is active at a time.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingua_flax.__main__ import exit_status
from lingua_flax.data.text_files import read_lines
from lingua_flax.data.tokenizer import Tokenizer, language_tag, load_tokenizer, model_paths
from lingua_flax.host.workers import WorkerPool
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.schema import DecodingOptions

ROOT = Path(__file__).parent.parent

LINGUA_FLAX, CTRANSLATE2 = "Lingua Flax", "CTranslate2"
SINGLE_SENTENCES = 200  # translated one at a time, with batch size 1
LENGTH_PENALTY = 0.0  # the two systems define any other penalty differently
Translate = Callable[[Sequence[str], int, int], list[str]]  # lines, beam size, batch size


class System(NamedTuple):
    """What translates: an engine, its precision, and the run whose network it uses."""

    engine: str
    precision: str
    workdir: Path

    def __str__(self) -> str:
        return f"{self.workdir.name}: {self.engine} {self.precision}"


class Measurement(NamedTuple):
    times: list[float]  # seconds of each part
    texts: list[str]
    memory: int  # bytes, at most


def load_lingua_flax(workdir: Path, precision: str, options: argparse.Namespace) -> Translate:
    """Loads the model and returns this project's translation function."""
    from lingua_flax.devices.compilation import set_up_compilation
    from lingua_flax.translation.translator import Translator

    set_up_compilation()
    devices = read_workdir_config(workdir).devices.compute.model_copy(update={"precision": precision})
    translator = Translator.load(workdir, options.checkpoint, devices)

    def translate(lines: Sequence[str], beam_size: int, batch_size: int) -> list[str]:
        decoding = DecodingOptions(beam_size=beam_size, batch_size=batch_size, length_penalty=LENGTH_PENALTY)
        translations = translator.translate(lines, decoding, warn=False)
        return [translation.text for translation in translations]

    return translate


def load_tagged_tokenizer(workdir: Path) -> Tokenizer:
    """Returns the tokenizer of a run, with the tag of its target language if it has one."""
    config = read_workdir_config(workdir)
    tokenizer = load_tokenizer(model_paths(workdir, joint=config.tokenizer.joint))
    return tokenizer.with_source_tag(language_tag(config.data.target_language)) if config.data.tag_target else tokenizer


def load_ctranslate2(workdir: Path, precision: str, options: argparse.Namespace, exported: Path) -> Translate:
    """Loads the exported model and returns CTranslate2's translation function, with the tokenizer of this project."""
    import ctranslate2

    from lingua_flax.translation.decoding import default_max_length

    tokenizer = load_tagged_tokenizer(workdir)
    piece_ids = {piece: i for i, piece in enumerate(tokenizer.target_pieces(range(tokenizer.target_vocab_size)))}
    threads = {"inter_threads": 1, "intra_threads": options.cores}
    translator = ctranslate2.Translator(str(exported), "cpu", compute_type=precision, **threads)

    def translate(lines: Sequence[str], beam_size: int, batch_size: int) -> list[str]:
        pieces = [tokenizer.source_pieces(ids) for ids in tokenizer.encode_source(lines)]
        limit = int(default_max_length(max(map(len, pieces))))
        results = translator.translate_batch(
            pieces,
            beam_size=beam_size,
            max_batch_size=batch_size,
            max_decoding_length=limit,
            length_penalty=LENGTH_PENALTY,
            disable_unk=True,
        )
        return tokenizer.decode_target([[piece_ids[piece] for piece in result.hypotheses[0]] for result in results])

    return translate


_loaded: tuple[Translate, list[str]]  # of the process of a system: how it translates, and what


def load(system: System, options: argparse.Namespace, exported: Path) -> float:
    """Loads a system in its process; returns the seconds that this takes, with the first sentence."""
    global _loaded
    started = time.perf_counter()
    if system.engine == LINGUA_FLAX:
        translate = load_lingua_flax(system.workdir, system.precision, options)
    else:
        translate = load_ctranslate2(system.workdir, system.precision, options, exported)
    _loaded = translate, list(read_lines(options.input))
    translate(_loaded[1][:1], 5, 1)
    return time.perf_counter() - started


def translate_input(beam_size: int, batch_size: int) -> Measurement:
    """Translates with the system of this process."""
    translate, lines = _loaded
    times, texts = [], []
    for part in [lines] if batch_size > 1 else [[line] for line in lines[:SINGLE_SENTENCES]]:
        started = time.perf_counter()
        texts += translate(part, beam_size, batch_size)
        times.append(time.perf_counter() - started)
    return Measurement(times, texts, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def export(options: argparse.Namespace, folder: Path) -> None:
    """Exports the model for CTranslate2 with lingua-flax export, which compares the two first."""
    command = [sys.executable, "-m", "lingua_flax", "export", "--checkpoint", options.checkpoint]
    command += ["--workdir", str(options.ctranslate2)]
    command += ["--format", "ctranslate2", "--output", str(folder), "--verify", str(options.input)]
    if subprocess.run(command, cwd=ROOT).returncode:  # the command has printed the reason
        raise SystemExit(2)


def report(systems: dict[System, WorkerPool], beam: int, batch: int, num_rounds: int) -> None:
    """Measures one setting and prints a table row for each system; tokens are those of the translations, with EOS."""
    first, *_ = systems

    def measured() -> dict[System, Measurement]:
        return {system: pool.submit(translate_input, beam, batch).result() for system, pool in systems.items()}

    texts_of = {system: measurement.texts for system, measurement in measured().items()}
    rounds = [measured() for _ in range(num_rounds)]
    for system, texts in texts_of.items():
        seconds = statistics.median(sum(replies[system].times) for replies in rounds)
        tokens = sum(map(len, load_tagged_tokenizer(system.workdir).encode_target(texts)))
        ratio = statistics.median(sum(replies[first].times) / sum(replies[system].times) for replies in rounds)
        latency = ""
        if batch == 1:
            latencies = 1e3 * np.array([replies[system].times for replies in rounds]).min(axis=0)
            latency = f"{np.median(latencies):.1f}, {np.percentile(latencies, 95):.1f}"
        same = sum(text == other for text, other in zip(texts, texts_of[first], strict=True)) / len(texts)
        memory = max(replies[system].memory for replies in rounds) / 1e6
        rates = f"{len(texts) / seconds:,.0f} | {tokens / seconds:,.0f}"
        row = f"| {beam} | {batch} | {system} | {rates} | {ratio:.2f} | {latency} | {same:.1%} | {memory:,.0f} |"
        print(row, flush=True)


def main(argv: Sequence[str]) -> None:
    """Prints a table with a row for each system and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, nargs="+", required=True, help="runs to translate with")
    parser.add_argument("--ctranslate2", type=Path, metavar="WORKDIR", help="a run that CTranslate2 translates with")
    parser.add_argument(
        "--precision", nargs="+", default=["float32"], choices=["float32", "bfloat16"], help="as in devices.precision"
    )
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="threads of CTranslate2")
    options = parser.parse_args(argv)
    for path in (*options.workdir, *([options.ctranslate2] if options.ctranslate2 else []), options.input):
        if not path.exists():
            parser.error(f"{path}: no such file or folder")
    systems = [
        System(LINGUA_FLAX, precision, workdir) for workdir in options.workdir for precision in options.precision
    ]
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder, "exported")
        if options.ctranslate2:
            systems += [System(CTRANSLATE2, precision, options.ctranslate2) for precision in ("float32", "int8")]
            export(options, exported)
        processes = {system: WorkerPool(1, f"the process of {system} has ended; see its output") for system in systems}
        for system, process in processes.items():
            seconds = process.submit(load, system, options, exported).result()
            print(f"{system}: {seconds:.1f} s for imports, loading the model and the first sentence")
        print(
            "\n| beam | batch | | sentences/s | tokens/s | speed relative to the first | "
            "single-sentence latency, ms: median, 95th percentile | same as the first | peak MB |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for beam, batch in ((1, 64), (5, 64), (1, 1), (5, 1)):
            report(processes, beam, batch, options.rounds)


if __name__ == "__main__":
    # The processes of the systems import the functions that they call; there, __main__ is another module.
    from benchmarks import decoding

    sys.exit(exit_status(decoding.main, sys.argv[1:]))
