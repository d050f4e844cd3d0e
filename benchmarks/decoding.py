"""Decoding speed beside CTranslate2 with the same weights: the same sentences in turn, several rounds in one run.

Run from the repository's root, with the extra `bench` installed (pip install -e '.[bench]'), on the workdir of a
plain pre-norm model with one embedding, as benchmarks/configs/width_128.toml has:
  python benchmarks/decoding.py --workdir W --input MULTI30K/test_2016_flickr.en.gz [--rounds 3] [--cores 2]

Each side is a process of its own, which loads the model once; only one works at a time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.text_files import read_lines
from data.tokenizer import Tokenizer, load_tokenizer, model_paths
from options.schema import DecodingOptions

ROOT = Path(__file__).parent.parent

SIDES = ("Lingua Flax float32", "CTranslate2 float32", "CTranslate2 int8")
ALONE = 200  # sentences that are translated one by one
LENGTH_PENALTY = 0.0  # the two define others differently
Translate = Callable[[Sequence[str], int, int], list[str]]  # lines, beam size, batch size


def lingua_flax(options: argparse.Namespace) -> Translate:
    """This project's translator."""
    from host.malloc import keep_freed_memory

    keep_freed_memory()
    from devices.compilation import set_up_compilation
    from translation.translator import Translator

    set_up_compilation()
    translator = Translator.load(options.workdir, options.checkpoint)

    def translate(lines: Sequence[str], beam_size: int, batch_size: int) -> list[str]:
        decoding = DecodingOptions(beam_size=beam_size, batch_size=batch_size, length_penalty=LENGTH_PENALTY)
        found = translator.translate(lines, decoding, first_line=None)
        return [translation.text for translation in found]

    return translate


def ctranslate2_of(options: argparse.Namespace, compute_type: str) -> Translate:
    """CTranslate2 on the exported model, with the tokenizer of this project."""
    import ctranslate2

    from translation.decoding import default_limit

    tokenizer = load_tokenizer(model_paths(options.workdir, joint=True))
    numbers = {piece: i for i, piece in enumerate(tokenizer.target_pieces(range(tokenizer.target_vocab_size)))}
    cores = {"inter_threads": 1, "intra_threads": options.cores}
    translator = ctranslate2.Translator(str(options.exported), "cpu", compute_type=compute_type, **cores)

    def translate(lines: Sequence[str], beam_size: int, batch_size: int) -> list[str]:
        pieces = [tokenizer.source_pieces(ids) for ids in tokenizer.encode_source(lines)]
        longest = int(default_limit(max(map(len, pieces))))
        found = translator.translate_batch(
            pieces,
            beam_size=beam_size,
            max_batch_size=batch_size,
            max_decoding_length=longest,
            length_penalty=LENGTH_PENALTY,
            disable_unk=True,
        )
        return tokenizer.decode_target([[numbers[piece] for piece in each.hypotheses[0]] for each in found])

    return translate


def work(options: argparse.Namespace) -> None:
    """One side: answers each line of standard input, a beam size and a batch size, with what it measured as JSON."""
    started = time.perf_counter()
    translate = lingua_flax(options) if options.side == SIDES[0] else ctranslate2_of(options, options.side.split()[1])
    lines = list(read_lines(options.input))
    translate(lines[:1], 5, 1)
    print(json.dumps({"start": time.perf_counter() - started}), flush=True)
    for command in sys.stdin:
        beam_size, batch_size = map(int, command.split())
        chosen = lines if batch_size > 1 else lines[:ALONE]
        times, texts = [], []
        for part in [chosen] if batch_size > 1 else [[line] for line in chosen]:
            began = time.perf_counter()
            texts += translate(part, beam_size, batch_size)
            times.append(time.perf_counter() - began)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"times": times, "texts": texts, "memory": memory}), flush=True)


def export(options: argparse.Namespace, folder: Path) -> Path:
    """Writes the workdir's model for CTranslate2, in a process of its own."""
    program = (
        "import sys; sys.path[:0] = ['.', 'benchmarks']; from pathlib import Path; "
        "from ctranslate2_export import export; from translation.translator import Translator; "
        "export(Translator.load(sys.argv[1], sys.argv[2]), Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", program, str(options.workdir), options.checkpoint, str(folder)]
    if subprocess.run(command, cwd=ROOT).returncode:  # it has said why
        raise SystemExit(2)
    return folder


def first_answer(options: argparse.Namespace) -> float:
    """Seconds from the start of translate.py to its first translation."""
    command = [sys.executable, "translate.py", "--workdir", str(options.workdir), "--checkpoint", options.checkpoint]
    line = next(iter(read_lines(options.input)))
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, input=line + "\n", text=True, check=True, capture_output=True)
    return time.perf_counter() - began


def ask(process: subprocess.Popen[str], beam_size: int, batch_size: int) -> dict[str, Any]:
    """What one side measures now."""
    assert process.stdin
    process.stdin.write(f"{beam_size} {batch_size}\n")
    process.stdin.flush()
    return answer(process)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What one side says next."""
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise SystemExit("error: this side has ended; what it said is above")
    return json.loads(line)


def report(sides: dict[str, subprocess.Popen[str]], tokenizer: Tokenizer, beam: int, batch: int, number: int) -> None:
    """So many rounds of one setting, as rows of a table; tokens are those of the translations, their ends included."""
    texts_of = {side: ask(process, beam, batch)["texts"] for side, process in sides.items()}  # the warm-up
    rounds = [{side: ask(process, beam, batch) for side, process in sides.items()} for _ in range(number)]
    for side, texts in texts_of.items():
        seconds = [sum(each[side]["times"]) for each in rounds]
        rate = len(texts) / statistics.median(seconds)
        tokens = sum(map(len, tokenizer.encode_target(texts))) / statistics.median(seconds)
        ratio = statistics.median(sum(each[SIDES[0]]["times"]) / sum(each[side]["times"]) for each in rounds)
        latency = ""
        if batch == 1:
            alone = 1e3 * np.array([each[side]["times"] for each in rounds]).min(axis=0)
            latency = f"{np.median(alone):.1f}, {np.percentile(alone, 95):.1f}"
        same = sum(one == other for one, other in zip(texts, texts_of[SIDES[0]], strict=True)) / len(texts)
        memory = max(each[side]["memory"] for each in rounds) / 1e6
        cells = [beam, batch, side, f"{rate:,.0f}", f"{tokens:,.0f}", f"{ratio:.2f}", latency, f"{same:.1%}"]
        print("| " + " | ".join(map(str, cells)) + f" | {memory:,.0f} |", flush=True)


def main() -> None:
    """Prints a table: a row for each side and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="threads of CTranslate2")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--exported", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not importlib.util.find_spec("ctranslate2"):
        parser.error("CTranslate2 is not installed: pip install -e '.[bench]'")
    for path in (options.workdir, options.input):
        if not path.exists():
            parser.error(f"{path}: there is no such file or folder")
    if options.side:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        own = ["--exported", str(export(options, Path(folder, "exported")))]
        first_answer(options)
        print(f"translate.py answers {first_answer(options):.1f} s after its start (programs in the cache)")
        tokenizer = load_tokenizer(model_paths(options.workdir, joint=True))
        sides = {}
        for side in SIDES:
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, *own]
            sides[side] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            print(f"{side}: imports, model and a first sentence {answer(sides[side])['start']:.1f} s")
        print("\n| beam | batch | | sentences/s | tokens/s | speed, ours 1 | alone, ms: median, 95% | as ours | MB |")
        print("|---|---|---|---|---|---|---|---|---|")
        for beam, batch in ((1, 64), (5, 64), (1, 1), (5, 1)):
            report(sides, tokenizer, beam, batch, options.rounds)
        for process in sides.values():
            assert process.stdin
            process.stdin.close()
            process.wait()


if __name__ == "__main__":
    main()
