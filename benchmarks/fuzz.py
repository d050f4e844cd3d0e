"""Passes a million generated lines through the text pipeline and checks that none is lost, reordered, split or changed.

Covers every step of translation that handles text: reading, tokenizing, splitting and truncating, batching, decoding
and writing. The network is replaced by one that copies its source. Exits with status 1 if a line is lost or split, or
is changed where it must not be.

Run from the repository root: python benchmarks/fuzz.py [--lines 1000000] [--seed 1] [--kind unigram|bytes]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lingua_flax.data.batch import length_batches
from lingua_flax.data.corpora import phrasebook
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.text_files import chunks, read_lines
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.translation.line_splitting import split_text

MAX_LENGTH = 64  # tokens
CHUNK = 4096  # lines
NASTY = ["\0", "\x1b[31m", "\ufeff", "\r", "\r\r", "\u2028", "\u2029", "\x85", "\v", "\f", "\t", "\u202eabc"]
NASTY += ["שלום", "مرحبا", "👩‍👩‍👧", "🇫🇷", "e\u0301\u0323", "\u200b", "\u3000", "▁", "⁇", "</s>", "<s>", "<pad>"]
NASTY += ["<unk>", "<2fr>", "<0x0A>", "\ufffd", "\U0010ffff", "ﬁ", "㌔", "你好。", "I swam across the river.", " "]
# First and last code points: ASCII, Latin, Greek, combining, Arabic, Devanagari, CJK, symbols, emoji, private use.
RANGES = [(0x01, 0x09), (0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x300, 0x36F), (0x600, 0x6FF), (0x900, 0x97F)]
RANGES += [(0x4E00, 0x9FFF), (0x2000, 0x206F), (0x1F300, 0x1FAFF), (0xE000, 0xF8FF), (0x100000, 0x10FFFF)]


def generate_lines(count: int, rng: random.Random) -> Iterator[str]:
    """Yields random lines: one in 20 is empty or blank, and one in 20,000 has at least 100,000 characters."""
    for _ in range(count):
        kind = rng.random()
        if kind < 0.05:
            yield " " * rng.randrange(4)
            continue
        length = 100_000 if kind > 0.99995 else rng.randrange(1, 60)
        parts: list[str] = []
        characters = 0
        while characters < length:
            is_nasty = rng.random() < 0.4
            part = (
                rng.choice(NASTY) if is_nasty else "".join(chr(rng.randint(*ends)) for ends in rng.choices(RANGES, k=5))
            )
            parts.append(part)
            characters += len(part)
        yield "".join(parts)


def copy_lines(lines: list[str], tokenizer: Tokenizer) -> list[str]:
    """Returns the translations of the lines by a network that copies its source."""

    def fits(text: str) -> bool:
        return len(tokenizer.encode_source([text])[0]) <= MAX_LENGTH

    line_ids = tokenizer.encode_source(lines)
    line_parts = [
        [line] if len(ids) <= MAX_LENGTH else [text for text, _, _ in split_text(line, "", fits)]
        for line, ids in zip(lines, line_ids, strict=True)
    ]
    flat_parts = [part for parts in line_parts for part in parts]
    part_ids = [ids[:MAX_LENGTH] for ids in tokenizer.encode_source(flat_parts)]
    decoded = [""] * len(flat_parts)
    for group, _ in length_batches([len(ids) for ids in part_ids], 64, MAX_LENGTH):
        for index, text in zip(group, tokenizer.decode_target([part_ids[i] for i in group]), strict=True):
            decoded[index] = text
    decoded_parts = iter(decoded)
    return [" ".join(next(decoded_parts) for _ in parts) for parts in line_parts]


def is_changed(line: str, text: str, tokenizer: Tokenizer) -> bool:
    """Returns whether the output for a line that fits differs from the line as SentencePiece normalizes it."""
    if len(tokenizer.encode_source([line])[0]) > MAX_LENGTH:
        return False  # its parts may be normalized differently from the whole line
    return text != tokenizer.source.normalize(line).replace("▁", " ").strip(" ")


def main() -> None:
    """Prints the number of lines, their size and the time taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["unigram", "bytes"], default="bytes")
    options = parser.parse_args()
    byte_fallback = options.kind == "bytes"
    config = TokenizerConfig(vocab_size=1000, kind="bpe" if byte_fallback else "unigram", byte_fallback=byte_fallback)
    tokenizer = parse_tokenizers(train_tokenizer([Pair(*pair) for pair in phrasebook.generate().train[:5000]], config))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        with open(source, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in generate_lines(options.lines, random.Random(options.seed)))
        started, changed = time.monotonic(), 0
        with open(target, "w", encoding="utf-8", newline="\n") as file:
            for lines in chunks(read_lines(source), CHUNK):
                copies = copy_lines(lines, tokenizer)
                assert len(copies) == len(lines)
                file.writelines(f"{line}\n" for line in copies)
                # Without byte fallback, characters without a piece become <unk>.
                changed += (
                    sum(is_changed(*pair, tokenizer) for pair in zip(lines, copies, strict=True))
                    if byte_fallback
                    else 0
                )
        seconds = time.monotonic() - started
        written, size = target.read_bytes().count(b"\n"), source.stat().st_size
    if written != options.lines or changed:
        sys.exit(f"error: {options.lines:,} lines went in and {written:,} came out, of which {changed:,} were changed")
    print(f"{written:,} lines ({size / 1e6:.0f} MB) came out in order and unchanged: {seconds:.0f} s")


if __name__ == "__main__":
    main()
