"""Checks that an exported network translates as the run does: greedy and with beams, without a length penalty."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.downloads import offline
from lingua_flax.data.text_files import read_lines
from lingua_flax.export.description import Export
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.interruption import interruption
from lingua_flax.host.terminal import print_table, progress_bar
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.translator import Translator

LINES = 100  # that have tokens, no more than the network reads, and nothing that is to be kept
TOLERANCE = 1e-3  # of scores, which are sums of natural log-probabilities
REQUIRED = 0.99  # share of the lines with equal translations
NOT_COMPARED = "the export is not compared with the run: %s"

log = logging.getLogger(__name__)

# Lines, beam size -> for each line, in order, its target ids without the end token, and their log-probability; a slow
# engine may leave out the last lines.
Engine = Callable[[Sequence[str], int], Iterable[tuple[list[int], float]]]


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


def lines_to_verify(translator: Translator, data: DataConfig, verify: Path | None) -> list[str]:
    """Returns the first LINES lines of a file, or by default of the validation split, that exports can translate.

    Raises UserError if the file has none; if the split has none, or is not here, the log says so.
    """
    tokenizer, longest = translator.tokenizer, translator.max_length
    try:
        with offline():
            sources = read_lines(verify) if verify else _validation_sources(data, translator.languages[0])
            plain = (line for line in sources if not tokenizer.protect(line).spans)  # placeholders are of the run
            suitable = (line for line in plain if 1 < len(tokenizer.encode_source([line])[0]) <= longest)
            if lines := list(itertools.islice(suitable, LINES)):
                return lines
        raise UserError(f"{verify or 'the validation split'} has no lines of at most {longest} tokens")
    except UserError as error:
        if verify:
            raise
        log.warning(NOT_COMPARED, f"{error}; or give lines with --verify FILE")
        return []


def _validation_sources(data: DataConfig, language: str) -> Iterator[str]:
    sides = (data.source_language, data.target_language)
    if language not in sides:
        raise UserError(f"the validation split is not in {language}")
    return (pair[sides.index(language)] for pair in open_corpus(data).split("validation"))


def translated(translator: Translator, lines: Sequence[str], beam_size: int) -> list[tuple[list[int], float]]:
    """Returns what an engine does, for a translator."""
    found = translator.translate_sentences(lines, beam_size=beam_size, length_penalty=0.0, warn=False)
    return [(list(own.hypotheses[0].tokens[:-1]), own.hypotheses[0].score) for own in found]


def compare(
    engine: Engine, translator: Translator, lines: Sequence[str], beam_size: int, advance: Callable[[int], None]
) -> Parity:
    """Translates the lines with both and compares translations and scores; raises Interrupted after a signal."""
    right = zip(lines, translator.tokenizer.encode_source(lines), translated(translator, lines, beam_size), strict=True)
    expected = [
        (line, ids, score)
        for line, source, (ids, score) in right
        if len(ids) + 1 < min(default_max_length(len(source)), translator.max_length)
    ]
    compared, equal, tied, difference = 0, 0, 0, 0.0
    found = engine([line for line, _, _ in expected], beam_size)
    for (_, expected_ids, expected_score), (ids, score) in zip(expected, found, strict=False):
        compared += 1
        advance(1)
        interruption.check()
        if ids == expected_ids:
            equal += 1
            difference = max(difference, abs(score - expected_score))
        elif abs(score - expected_score) <= TOLERANCE:
            tied += 1
    advance(len(lines) - compared)
    return Parity(beam_size, compared, len(lines) - len(expected), equal, tied, difference)


def check_parity(export: Export, engine: Engine, lines: Sequence[str]) -> None:
    """Compares an engine with the run, in a table; raises RunError if too much differs, in float32."""
    beam_sizes = dict.fromkeys((1, export.beam_size))
    try:
        with progress_bar(len(beam_sizes) * len(lines), "lines compared") as advance:
            results = [compare(engine, export.translator, lines, beam_size, advance) for beam_size in beam_sizes]
    except ImportError as error:
        log.warning(NOT_COMPARED, f"{error}; pip install {error.name}")
        return
    _print_table(f"{export.format}, {export.quantization}", results)
    if not any(result.lines for result in results):
        log.warning(NOT_COMPARED, "all translations reach the length limit")
    if export.quantization == "float32" and not all(result.holds for result in results):
        raise RunError(f"the export does not translate as {export.run} does, so nothing was written")


def _print_table(title: str, results: Sequence[Parity]) -> None:
    """Prints a row for each beam size; "same score" counts other translations with the same score."""
    table = Table(title=title, title_justify="left")
    for heading in ("search", "lines", "same translation", "same score", "largest difference of scores", "cut short"):
        table.add_column(heading, justify="left" if heading == "search" else "right")
    for result in results:
        search = "greedy" if result.beam_size == 1 else f"{result.beam_size} beams"
        cells = (result.lines, result.equal, result.tied, f"{result.score_difference:.1e}", result.cut)
        table.add_row(search, *map(str, cells))
    print_table(table)
