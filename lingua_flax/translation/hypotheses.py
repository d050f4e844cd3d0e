"""The result types of the translator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from lingua_flax.data.placeholders import Protected
from lingua_flax.options.special_ids import EOS_ID


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


def join_parts(parts: Sequence[tuple[str, str, tuple[Hypothesis, ...]]]) -> tuple[Hypothesis, ...]:
    """Joins parts of a line, (source, what stands after it, hypotheses) each: the best ones, the second best, ..."""
    if not parts:
        return (Hypothesis("", 0.0),)
    texts, after, hypotheses = zip(*parts, strict=True)
    if len(parts) == 1:
        return tuple(hypotheses[0])
    return tuple(
        Hypothesis(
            text=_joined([hypothesis.text for hypothesis in ranked], after),
            score=sum(hypothesis.score for hypothesis in ranked),
            tokens=(*(token for hypothesis in ranked for token in hypothesis.tokens if token != EOS_ID), EOS_ID),
            parts=tuple(zip(texts, ranked, strict=True)),
        )
        for ranked in zip(*hypotheses, strict=False)  # parts can have different numbers of hypotheses
    )


def _joined(texts: Sequence[str], after: Sequence[str]) -> str:
    """Returns the texts with what stands between them; nothing stands beside an empty one."""
    joined, space = "", ""
    for text, following in zip(texts, after, strict=True):
        if text:
            joined += (space if joined else "") + text
            space = following
    return joined
