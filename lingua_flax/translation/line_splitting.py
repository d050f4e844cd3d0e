"""Splitting a line that is too long for the network into parts that fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from lingua_flax.data.batch import cut
from lingua_flax.data.tokenizer import Tokenizer

# The closing quotes, brackets and whitespace that follow sentence-final punctuation.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])[」』”]*\s*")
_SPACE = re.compile(r"\s+")


def split_source(line: str, tokenizer: Tokenizer, max_length: int) -> list[tuple[str, list[int]]]:
    """Splits a line into parts of at most `max_length` tokens, end token included; returns their texts and ids."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode_source([text])[0]

    whole = ids(line)
    if len(whole) <= max_length:
        return [(line, whole)]
    # A part can only still be too long if it is a single character with more byte tokens than max_length.
    return [(part, cut(ids(part), max_length)) for part in split_line(line, lambda part: len(ids(part)) <= max_length)]


def split_line(line: str, fits: Callable[[str], bool]) -> list[str]:
    """Splits a line into parts that fit, in order; only the whitespace between parts is lost.

    A line that does not fit is split at every sentence end, even where several sentences would fit together: a network
    trained on single sentences tends to omit some of several. A sentence that does not fit is split in two at the space
    nearest its middle, and the halves likewise if necessary; a word without a space is split in its middle. A single
    character is never split, so such a part may not fit.
    """
    line = line.strip()
    if fits(line):
        return [line]
    ends = [match.end() for match in _SENTENCE_END.finditer(line) if match.end() < len(line)]
    sentences = [line[start:end].strip() for start, end in itertools.pairwise([0, *ends, len(line)])]
    return [part for sentence in sentences for part in _halve_until_fits(sentence, fits)]


def _halve_until_fits(text: str, fits: Callable[[str], bool]) -> list[str]:
    if len(text) < 2 or fits(text):
        return [text]
    middle = len(text) // 2
    spaces = [match.end() for match in _SPACE.finditer(text)]
    cut = min(spaces, key=lambda space: abs(space - middle), default=middle)
    return _halve_until_fits(text[:cut].strip(), fits) + _halve_until_fits(text[cut:], fits)
