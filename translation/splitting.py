"""Cutting a line that is too long for the network into parts that are not."""

from __future__ import annotations

import re
from collections.abc import Callable

# Where a line may be cut, the better places first: after the sign that ends a sentence, and what closes it; at spaces.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])[」』”]*\s*")
_SPACE = re.compile(r"\s+")


def split_line(line: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts of a line that fit, in order: nothing is lost but spaces between parts.

    A line that does not fit is cut at the sentence end nearest its middle; where there is none, at the space nearest
    that, and a word by itself in its middle; the halves likewise. A single character is never cut.
    """
    line = line.strip()
    if len(line) < 2 or fits(line):
        return [line]
    left, right = _halves(line)
    return split_line(left, fits) + split_line(right, fits)


def _halves(line: str) -> tuple[str, str]:
    middle = len(line) / 2
    for boundary in (_SENTENCE_END, _SPACE):
        places = [match.end() for match in boundary.finditer(line) if 0 < match.end() < len(line)]
        if places:
            place = min(places, key=lambda place: abs(place - middle))
            return line[:place], line[place:]
    return line[: len(line) // 2], line[len(line) // 2 :]
