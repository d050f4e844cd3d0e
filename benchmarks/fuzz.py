"""A million generated lines through the text path: written, read, tokenized, cut, laid into batches, decoded, written.

Everything that translation does with text but the network, whose output is taken to be the source's own ids. A line
that is lost, out of order, broken in two or changed where it may not be ends the program with status 1.

Run from the repository's root: python benchmarks/fuzz.py [--lines 1000000] [--seed 1] [--kind unigram|bytes]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from data.batch import length_batches
from data.corpora import phrasebook
from data.corpora.corpus import Pair
from data.text_files import chunks, read_lines
from data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from options.schema import TokenizerConfig
from translation.line_splitting import split_line

MAX_LENGTH = 64  # tokens
CHUNK = 4096  # lines
NASTY = ["\0", "\x1b[31m", "\ufeff", "\r", "\r\r", "\u2028", "\u2029", "\x85", "\v", "\f", "\t", "\u202eabc", "שלום",
         "مرحبا", "👩‍👩‍👧", "🇫🇷", "e\u0301\u0323", "\u200b", "\u3000", "▁", "⁇", "</s>", "<s>", "<pad>", "<unk>",
         "<2fr>", "<0x0A>", "\ufffd", "\U0010ffff", "ﬁ", "㌔", "你好。", "I swam across the river.", " "]  # fmt: skip
# First and last code points: ASCII, Latin, Greek, combining, Arabic, Devanagari, CJK, symbols, emoji, private use.
RANGES = [(0x01, 0x09), (0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x300, 0x36F), (0x600, 0x6FF), (0x900, 0x97F),
          (0x4E00, 0x9FFF), (0x2000, 0x206F), (0x1F300, 0x1FAFF), (0xE000, 0xF8FF), (0x100000, 0x10FFFF)]  # fmt: skip


def generated(count: int, draw: random.Random) -> Iterator[str]:
    """Lines of all kinds, one in 20 empty or of spaces, one in 20,000 with 100,000 characters."""
    for _ in range(count):
        kind = draw.random()
        if kind < 0.05:
            yield " " * draw.randrange(4)
            continue
        length = 100_000 if kind > 0.99995 else draw.randrange(1, 60)
        parts: list[str] = []
        characters = 0
        while characters < length:
            some = draw.random() < 0.4
            part = (
                draw.choice(NASTY) if some else "".join(chr(draw.randint(*ends)) for ends in draw.choices(RANGES, k=5))
            )
            parts.append(part)
            characters += len(part)
        yield "".join(parts)


def translated(lines: list[str], tokenizer: Tokenizer) -> list[str]:
    """What a network that copies its source would have translated them to."""

    def fits(text: str) -> bool:
        return len(tokenizer.encode_source([text])[0]) <= MAX_LENGTH

    whole = tokenizer.encode_source(lines)
    parts = [
        [line] if len(ids) <= MAX_LENGTH else split_line(line, fits) for line, ids in zip(lines, whole, strict=True)
    ]
    flat = [part for of_line in parts for part in of_line]
    ids = [sentence[:MAX_LENGTH] for sentence in tokenizer.encode_source(flat)]
    decoded = [""] * len(flat)
    for group, _ in length_batches([len(sentence) for sentence in ids], 64, MAX_LENGTH):
        for index, text in zip(group, tokenizer.decode_target([ids[i] for i in group]), strict=True):
            decoded[index] = text
    each = iter(decoded)
    return [" ".join(next(each) for _ in of_line) for of_line in parts]


def is_other(line: str, text: str, tokenizer: Tokenizer) -> bool:
    """Whether a line that fits came out as something else than SentencePiece's normalizer makes of it."""
    if len(tokenizer.encode_source([line])[0]) > MAX_LENGTH:
        return False  # parts may be normalized in another way than the whole
    return text != tokenizer.source.normalize(line).replace("▁", " ").strip(" ")


def main() -> None:
    """Prints what went through and how fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["unigram", "bytes"], default="bytes")
    options = parser.parse_args()
    spelled = options.kind == "bytes"
    config = TokenizerConfig(vocab_size=1000, kind="bpe" if spelled else "unigram", byte_fallback=spelled)
    tokenizer = parse_tokenizers(train_tokenizer([Pair(*pair) for pair in phrasebook.generate().train[:5000]], config))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        with open(source, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in generated(options.lines, random.Random(options.seed)))
        began, different = time.monotonic(), 0
        with open(target, "w", encoding="utf-8", newline="\n") as file:
            for lines in chunks(read_lines(source), CHUNK):
                found = translated(lines, tokenizer)
                assert len(found) == len(lines)
                file.writelines(f"{line}\n" for line in found)
                different += (
                    sum(is_other(*pair, tokenizer) for pair in zip(lines, found, strict=True)) if spelled else 0
                )
        seconds = time.monotonic() - began
        written, size = target.read_bytes().count(b"\n"), source.stat().st_size
    if written != options.lines or different:
        sys.exit(f"{options.lines:,} lines in, {written:,} out, {different:,} of them other ones")
    print(f"{written:,} lines ({size / 1e6:.0f} MB) in and out in order, none changed: {seconds:.0f} s")


if __name__ == "__main__":
    main()
