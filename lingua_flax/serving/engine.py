"""What the server asks of whatever translates for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lingua_flax.data.glossary import Glossary
from lingua_flax.translation.word_alignment import Link


class Item(NamedTuple):
    """A line to translate, without line breaks.

    `num_hypotheses` translations are wanted; if `aligned`, the best one is to be aligned.
    """

    line: str
    target: str
    num_hypotheses: int = 1
    aligned: bool = False
    glossary: Glossary | None = None


class Result(NamedTuple):
    """The translations of a line.

    Attributes:
      texts: at least one and at most as many as wanted, best first; that of an empty line is empty.
      links: between the line and the best translation, if they are to be aligned.
    """

    texts: list[str]
    links: list[Link] = []  # noqa: RUF012 (never changed)


class Engine(Protocol):
    """Translates batches of lines into the languages of a run."""

    max_batch: int
    """The number of lines that are translated together."""
    workers: int
    """The number of batches that are translated at the same time."""
    takes_glossaries: bool
    """Whether the network has placeholders, which stand for the terms of glossaries."""

    def translate(self, items: Sequence[Item]) -> list[Result]:
        """Translates the items, in order."""
