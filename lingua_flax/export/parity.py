"""Checks that an exported network translates as the run does: greedy and with beams, without a length penalty."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich.table import Table

from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.interruption import interruption
from lingua_flax.host.terminal import print_table
from lingua_flax.options.special_ids import EOS_ID
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.translator import Translator

LINES = 100
TOLERANCE = 1e-3  # of scores, which are sums of natural log-probabilities
REQUIRED = 0.99  # share of the lines with equal translations

# Source ids of a sentence, beam size -> target ids without the end token, and the score.
Engine = Callable[[list[int], int], tuple[list[int], float]]


class Parity(NamedTuple):
    """How many translations of an exported network equal those of the run."""

    beam_size: int
    lines: int  # that were compared
    cut: int  # further lines whose translation reaches the length limit, where engines end it differently
    equal: int
    tied: int  # lines with another translation whose score is the same within TOLERANCE
    score_difference: float  # the largest of equal translations

    @property
    def holds(self) -> bool:
        """Whether enough translations are equal, and all scores are within TOLERANCE."""
        return self.equal + self.tied >= REQUIRED * self.lines and self.score_difference <= TOLERANCE


def lines_to_compare(lines: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """Returns the first LINES lines that have tokens, no more than `max_tokens`, and nothing that is to be kept."""
    plain = (line for line in lines if not tokenizer.protect(line).spans)  # exports know nothing of placeholders
    suitable = (line for line in plain if 1 < len(tokenizer.encode_source([line])[0]) <= max_tokens)
    return list(itertools.islice(suitable, LINES))


def engine_of(translator: Translator, lines: Sequence[str]) -> Engine:
    """Returns the engine that translates these lines with a translator, all of them when it is first asked."""

    @functools.cache
    def best(beam_size: int) -> dict[tuple[int, ...], Hypothesis]:
        ids = map(tuple, translator.tokenizer.encode_source(lines))
        found = translator.translate_sentences(lines, beam_size=beam_size, length_penalty=0.0, warn=False)
        return {source: each.hypotheses[0] for source, each in zip(ids, found, strict=True)}

    def translate(ids: list[int], beam_size: int) -> tuple[list[int], float]:
        hypothesis = best(beam_size)[tuple(ids)]
        return list(hypothesis.tokens[:-1]), hypothesis.score

    return translate


def compare(
    engine: Engine, translator: Translator, lines: Sequence[str], beam_size: int, advance: Callable[[int], None]
) -> Parity:
    """Translates the lines with both and compares translations and scores; raises Interrupted after a signal."""
    expected = translator.translate_sentences(lines, beam_size=beam_size, length_penalty=0.0, warn=False)
    cut, equal, tied, difference = 0, 0, 0, 0.0
    for line, translation in zip(lines, expected, strict=True):
        advance(1)
        interruption.check()
        (source,) = translator.tokenizer.encode_source([line])
        best = translation.hypotheses[0]
        if len(best.tokens) >= min(default_max_length(len(source)), translator.max_length):
            cut += 1
            continue
        ids, score = engine(source, beam_size)
        if [*ids, EOS_ID] == list(best.tokens):
            equal += 1
            difference = max(difference, abs(score - best.score))
        elif abs(score - best.score) <= TOLERANCE:
            tied += 1
    return Parity(beam_size, len(lines) - cut, cut, equal, tied, difference)


def print_parity(title: str, results: Sequence[Parity]) -> None:
    """Prints a table with a row for each beam size; "same score" counts other translations with the same score."""
    table = Table(title=title, title_justify="left")
    for heading in ("search", "lines", "same translation", "same score", "largest difference of scores", "cut short"):
        table.add_column(heading, justify="left" if heading == "search" else "right")
    for result in results:
        search = "greedy" if result.beam_size == 1 else f"{result.beam_size} beams"
        cells = (result.lines, result.equal, result.tied, f"{result.score_difference:.1e}", result.cut)
        table.add_row(search, *map(str, cells))
    print_table(table)
