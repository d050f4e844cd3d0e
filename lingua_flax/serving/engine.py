"""What the server asks of whatever translates for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Item(NamedTuple):
    """A line to translate, without line breaks.

    `num_hypotheses` translations are wanted; if `aligned`, the words of the best one are to be aligned.
    """

    line: str
    target: str
    num_hypotheses: int = 1
    aligned: bool = False


class Result(NamedTuple):
    """The translations of a line.

    Attributes:
      texts: at least one and at most as many as wanted, best first; that of an empty line is empty.
      links: pairs of words of the line and of the best translation, if they are to be aligned.
    """

    texts: list[str]
    links: list[tuple[int, int]] = []  # noqa: RUF012 (never changed)


class Engine(Protocol):
    """Translates batches of lines into the languages of a run."""

    max_batch: int
    """The number of lines that are translated together."""
    workers: int
    """The number of batches that are translated at the same time."""
    aligns: bool
    """Whether it can align words."""

    def translate(self, items: Sequence[Item]) -> list[Result]:
        """Translates the items, in order."""
