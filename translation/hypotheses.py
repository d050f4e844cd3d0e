"""What the translator returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from options.special_ids import EOS_ID


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation, its log-probability divided by the length penalty, and its tokens, ended by EOS_ID.

    Of a line that was translated in parts the score is the sum of theirs.
    """

    text: str
    score: float
    tokens: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Translation:
    """The hypotheses for one line, best first, at least one."""

    source: str
    hypotheses: tuple[Hypothesis, ...]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text


class ScoredTranslation(NamedTuple):
    """A given translation: its log-probability (natural logarithm), and its tokens, the end token included."""

    log_probability: float
    tokens: int


def join_parts(parts: Sequence[tuple[Hypothesis, ...]]) -> tuple[Hypothesis, ...]:
    """The hypotheses of a line from those of its parts: the best ones together, then the second ones, and so on."""
    if not parts:
        return (Hypothesis("", 0.0),)
    if len(parts) == 1:
        return parts[0]
    return tuple(
        Hypothesis(
            text=" ".join(filter(None, (hypothesis.text for hypothesis in together))),
            score=sum(hypothesis.score for hypothesis in together),
            tokens=(*(token for each in together for token in each.tokens if token != EOS_ID), EOS_ID),
        )
        for together in zip(*parts, strict=False)  # a part may have fewer hypotheses than the others
    )
