"""The result types of the translator."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from lingua_flax.data.placeholders import Protected


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A candidate translation.

    Attributes:
      score: its log-probability divided by the length penalty; of a line with several sentences, their sum.
      tokens: its token ids, ending with EOS_ID; none for a line without tokens.
      parts: of a line with several sentences or parts, the source text of each and the hypothesis for it.
      protected: otherwise, what the network was given, if it translated the line.
    """

    text: str
    score: float
    tokens: tuple[int, ...] = ()
    parts: tuple[tuple[str, Hypothesis], ...] = ()
    protected: Protected | None = dataclasses.field(default=None, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Translation:
    """A source line, its hypotheses, at least one, best first, and its words that the training text never had."""

    source: str
    hypotheses: tuple[Hypothesis, ...]
    unknown_words: tuple[str, ...] = ()  # each once; in lines of a corpus, none is looked up

    @property
    def text(self) -> str:
        """The text of the best hypothesis."""
        return self.hypotheses[0].text


class ScoredTranslation(NamedTuple):
    """The natural log-probability of a given translation and its number of tokens, both including the end token."""

    log_probability: float
    tokens: int
