"""Plants faults in Multi30k and measures how many of them lingua-flax clean finds or mends, and what else it takes.

Each kind of fault is planted in a share of the pairs. Found are those that are left out, or mended so that the line is
as before; lost are the other pairs that are left out.
"""

from __future__ import annotations

import gzip
import html
import html.entities
import itertools
import json
import random
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lingua_flax.data.cleaning.pipeline import clean
from lingua_flax.data.cleaning.readers import Row
from lingua_flax.options.schema import CleaningOptions


class Corpus(NamedTuple):
    """Aligned lines; `third` is the same text in another language."""

    source: Sequence[str]
    target: Sequence[str]
    third: Sequence[str]


def _entity(character: str) -> str:
    name = html.entities.codepoint2name.get(ord(character))
    return f"&{name};" if name else character


def _garbled(text: str) -> str:
    return text.encode().decode("sloppy-windows-1252")


# What makes a faulty pair from the corpus, its index and a generator of random numbers, or a faulty target.
LEFT_OUT: dict[str, Callable[[Corpus, int, random.Random], tuple[str, str]]] = {
    "random target": lambda corpus, i, draw: (corpus.source[i], draw.choice(corpus.target)),
    "swapped sides": lambda corpus, i, draw: (corpus.target[i], corpus.source[i]),
    "third language": lambda corpus, i, draw: (corpus.source[i], corpus.third[i]),
}
MENDED: dict[str, Callable[[str], str]] = {
    "mojibake": _garbled,
    "mojibake, twice": lambda text: _garbled(_garbled(text)),
    "entities": lambda text: "".join(map(_entity, text)),
    "tags": lambda text: f"<p>{text.replace(' ', ' <b>', 1)}</b></p>",
    "control characters": lambda text: text.replace("e", "e\x02\u200b\u00ad\ufeff"),
    "white space": lambda text: f"\u3000{text.replace(' ', chr(0xA0))}\t",
    "decomposed letters": lambda text: unicodedata.normalize("NFD", text),
}


def read_multi30k(folder: Path, language: str, pairs: int | None = None) -> Corpus:
    """Returns the training pairs of English and a language; the third language is French, or German if that is it."""
    third = "fr" if language == "de" else "de"
    texts = [gzip.decompress((folder / f"train.{name}.gz").read_bytes()).decode() for name in ("en", language, third)]
    return Corpus(*(text.removesuffix("\n").split("\n")[:pairs] for text in texts))


def measure(corpus: Corpus, language: str, kinds: Sequence[str], share: float, seed: int) -> tuple[int, int, int, int]:
    """Plants faults, all left out or all mended, in the corpus, cleans it, and compares it with what it was before.

    Returns how many were planted and found, and how many of the other pairs there are and were left out.
    """
    draw = random.Random(f"{' '.join(kinds)} {share} {seed}")
    count = len(corpus.source)
    planted = dict(zip(draw.sample(range(1, count), round(share * count)), itertools.cycle(kinds), strict=False))
    pairs = [*zip(corpus.source, corpus.target, strict=True)]
    for i in sorted(planted):
        plant, change = LEFT_OUT.get(planted[i]), MENDED.get(planted[i], str)
        pairs[i] = plant(corpus, i, draw) if plant else (corpus.source[i], change(corpus.target[i]))
    kept = cleaned((Row(index, *pair) for index, pair in enumerate(pairs)), language)
    found = planted.keys() - kept.keys() if kinds[0] in LEFT_OUT else planted.keys() & kept.keys()
    if kinds[0] in MENDED:  # so that they count as found
        for i in found:
            assert kept[i] == (_tidy(corpus.source[i]), _tidy(corpus.target[i])), planted[i]
    lost = set(range(count)) - planted.keys() - kept.keys()
    return len(planted), len(found), count - len(planted), len(lost)


def cleaned(rows: Iterable[Row], language: str, **options: Any) -> dict[int, tuple[str, str]]:
    """Returns the pairs that are kept when these rows, in English and a language, are cleaned, by their lines."""
    rows = list(rows)
    with tempfile.TemporaryDirectory() as folder:
        output, rejected = Path(folder, "kept.jsonl"), Path(folder, "rejected.jsonl")
        clean(rows, CleaningOptions(**options), ("en", language), output=output, rejected=rejected)
        kept, others = ([json.loads(line) for line in path.read_bytes().splitlines()] for path in (output, rejected))
    left_out = {pair["line"] for pair in others}
    lines = (row.line for row in rows if row.line not in left_out)
    return {line: (pair["en"], pair[language]) for line, pair in zip(lines, kept, strict=True)}


def _tidy(text: str) -> str:
    """Returns a text of Multi30k without its own double spaces and entities."""
    return " ".join(html.unescape(text).split())
