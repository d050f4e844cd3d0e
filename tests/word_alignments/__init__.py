"""200 sentence pairs of the phrasebook's test split, aligned by hand, and the error rate of alignments.

phrasebook.tsv has one pair per line: English, French, links. Words are what spaces separate and are counted from 0.
A link 2-3 is sure: English word 2 and French word 3 translate each other. A link 2?3 is possible: one of them is there
only for the grammar of its language, such as a partitive article, an auxiliary, "est-ce que" or the "ne" of a negation.
The full stops that the last words share are a possible link too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class HandAligned(NamedTuple):
    """A sentence pair with its links; the possible ones include the sure ones."""

    source: str
    target: str
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


def read_hand_aligned() -> list[HandAligned]:
    """Returns all pairs."""
    pairs = []
    for line in Path(__file__).with_name("phrasebook.tsv").read_text(encoding="utf-8").splitlines():
        source, target, links = line.split("\t")
        sure = frozenset(_link(link, "-") for link in links.split() if "-" in link)
        pairs.append(
            HandAligned(source, target, sure, sure | {_link(link, "?") for link in links.split() if "?" in link})
        )
    return pairs


def alignment_error_rate(pairs: Sequence[HandAligned], aligned: Sequence[Sequence[tuple[int, int]]]) -> float:
    """Returns the alignment error rate of Och and Ney (2003): 1 - (|A & S| + |A & P|) / (|A| + |S|)."""
    correct = total = 0
    for pair, links in zip(pairs, map(set, aligned), strict=True):
        correct += len(links & pair.sure) + len(links & pair.possible)
        total += len(links) + len(pair.sure)
    return 1 - correct / total


def _link(text: str, separator: str) -> tuple[int, int]:
    source, target = text.split(separator)
    return int(source), int(target)
