"""Plants faults in Multi30k and measures how many of them lingua-flax clean finds or mends, and what else it takes.

Run from the repository root:
  python -m tests.data.planted_faults FOLDER [--languages de fr] [--kinds ...] [--shares 0.05] [--seeds 1 2 3]

FOLDER has the published files of Multi30k. Each kind of fault is planted by itself, in a share of the pairs. Found are
those that are left out, or mended so that the line is as before; lost are the other pairs that are left out.
"""

from __future__ import annotations

import argparse
import gzip
import html
import html.entities
import itertools
import json
import random
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lingua_flax.data.cleaning.pipeline import clean
from lingua_flax.data.cleaning.readers import read_rows
from lingua_flax.options.schema import CleaningOptions


class Corpus(NamedTuple):
    """Aligned lines; `third` is the same text in another language."""

    source: Sequence[str]
    target: Sequence[str]
    third: Sequence[str]


class Result(NamedTuple):
    """How many faults were planted and found, and how many of the other pairs were left out."""

    planted: int
    found: int
    others: int
    lost: int


# What makes a faulty pair from the corpus, its index and a generator of random numbers.
Plant = Callable[[Corpus, int, random.Random], tuple[str | bytes, str | bytes]]


def in_target(change: Callable[[str], str | bytes]) -> Plant:
    """Returns what changes the target only."""
    return lambda corpus, i, draw: (corpus.source[i], change(corpus.target[i]))


def _entity(character: str) -> str:
    name = html.entities.codepoint2name.get(ord(character))
    return f"&{name};" if name else character


def _garbled(text: str) -> str:
    return text.encode().decode("sloppy-windows-1252")


LEFT_OUT: dict[str, Plant] = {
    "random target": lambda corpus, i, draw: (corpus.source[i], draw.choice(corpus.target)),
    "swapped sides": lambda corpus, i, draw: (corpus.target[i], corpus.source[i]),
    "third language": lambda corpus, i, draw: (corpus.source[i], corpus.third[i]),
    "untranslated": lambda corpus, i, draw: (corpus.source[i], corpus.source[i]),
    "empty side": in_target(lambda text: " "),
    "punctuation": in_target(lambda text: "- - -"),
    "half of the target": in_target(lambda text: text[: len(text) // 2]),
    "two targets": lambda corpus, i, draw: (corpus.source[i], f"{corpus.target[i]} {draw.choice(corpus.target)}"),
    "pair repeated in capitals": lambda corpus, i, draw: (corpus.source[i - 1].upper(), corpus.target[i - 1].upper()),
    "other number": lambda corpus, i, draw: (f"{corpus.source[i]} ({i + 10})", f"{corpus.target[i]} ({i + 11})"),
    "other URL": lambda corpus, i, draw: (f"{corpus.source[i]} www.a{i}.org", f"{corpus.target[i]} www.b{i}.org"),
}
MENDED: dict[str, Plant] = {
    "line in windows-1252": in_target(lambda text: text.encode("cp1252")),
    "mojibake": in_target(_garbled),
    "mojibake, twice": in_target(lambda text: _garbled(_garbled(text))),
    "entities": in_target(lambda text: "".join(map(_entity, text))),
    "tags": in_target(lambda text: f"<p>{text.replace(' ', ' <b>', 1)}</b></p>"),
    "control characters": in_target(lambda text: text.replace("e", "e\x02\u200b\u00ad\ufeff")),
    "white space": in_target(lambda text: f"\u3000{text.replace(' ', chr(0xA0))}\t"),
    "decomposed letters": in_target(lambda text: unicodedata.normalize("NFD", text)),
}
PLANTS = LEFT_OUT | MENDED


def read_multi30k(folder: Path, language: str, pairs: int | None = None) -> Corpus:
    """Returns the training pairs of English and a language; the third language is French, or German if that is it."""
    third = "fr" if language == "de" else "de"
    texts = [gzip.decompress((folder / f"train.{name}.gz").read_bytes()).decode() for name in ("en", language, third)]
    return Corpus(*(text.removesuffix("\n").split("\n")[:pairs] for text in texts))


def measure(corpus: Corpus, language: str, kind: str, share: float, seed: int) -> Result:
    """Plants faults in the corpus, cleans it, and compares it with what it was before."""
    draw = random.Random(f"{kind} {share} {seed}")
    count = len(corpus.source)
    planted = set(draw.sample(range(1, count), round(share * count)))
    pairs = [
        PLANTS[kind](corpus, i, draw) if i in planted else (corpus.source[i], corpus.target[i]) for i in range(count)
    ]
    kept = cleaned(pairs, language)
    found = planted - kept.keys() if kind in LEFT_OUT else planted & kept.keys()
    if kind in MENDED:  # so that they count as found
        assert all(kept[i] == (_tidy(corpus.source[i]), _tidy(corpus.target[i])) for i in found)
    lost = set(range(count)) - planted - kept.keys()
    return Result(len(planted), len(found), count - len(planted), len(lost))


def cleaned(pairs: Sequence[tuple[str | bytes, str | bytes]], language: str) -> dict[int, tuple[str, str]]:
    """Returns the pairs that are kept when these are cleaned as two text files of English and a language."""
    with tempfile.TemporaryDirectory() as folder:
        *paths, output, rejected = (
            Path(folder) / name for name in ("source", "target", "kept.jsonl", "rejected.jsonl")
        )
        for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_bytes(b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in side))
        languages = ("en", language)
        clean(read_rows(paths, languages), CleaningOptions(), languages, output=output, rejected=rejected)
        kept, others = ([json.loads(line) for line in path.read_bytes().splitlines()] for path in (output, rejected))
    left_out = {pair["line"] - 1 for pair in others}
    indices = (index for index in range(len(pairs)) if index not in left_out)
    return {index: (pair["en"], pair[language]) for index, pair in zip(indices, kept, strict=True)}


def _tidy(text: str) -> str:
    """Returns a text of Multi30k without its own double spaces and entities."""
    return " ".join(html.unescape(text).split())


def main() -> None:
    """Prints a line for each language, kind, share and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", nargs="+", default=["de", "fr"])
    parser.add_argument("--kinds", nargs="+", default=list(PLANTS), choices=list(PLANTS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.05])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    options = parser.parse_args()
    print("| language | kind | share | seed | planted | found | lost |\n|---|---|---|---|---|---|---|")
    for run in itertools.product(options.languages, options.kinds, options.shares, options.seeds):
        planted, found, others, lost = measure(read_multi30k(options.folder, run[0]), *run)
        row = (*run, f"{planted:,}", f"{found / max(planted, 1):.2%}", f"{lost / others:.2%}")
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
