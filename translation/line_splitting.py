"""Cutting a line that is too long for the network into parts that are not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

# After the sign that ends a sentence, and what closes it.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])[」』”]*\s*")
_SPACE = re.compile(r"\s+")


def split_line(line: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts of a line that fit, in order: nothing is lost but spaces between parts.

    A line that does not fit is cut at every sentence end: a network that has learned from single sentences leaves some
    out of several, though they fit. A sentence that does not fit is cut at the space nearest its middle, and the halves
    likewise; a word by itself in its middle. A single character is never cut.
    """
    line = line.strip()
    if fits(line):
        return [line]
    ends = [match.end() for match in _SENTENCE_END.finditer(line) if match.end() < len(line)]
    sentences = [line[start:end].strip() for start, end in itertools.pairwise([0, *ends, len(line)])]
    return [part for sentence in sentences for part in _pieces(sentence, fits)]


def _pieces(text: str, fits: Callable[[str], bool]) -> list[str]:
    if len(text) < 2 or fits(text):
        return [text]
    middle = len(text) // 2
    spaces = [match.end() for match in _SPACE.finditer(text)]
    place = min(spaces, key=lambda place: abs(place - middle), default=middle)
    return _pieces(text[:place].strip(), fits) + _pieces(text[place:], fits)
