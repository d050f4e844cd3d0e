"""Pairs from two text files, or from one of another format, each with its line; bad rows are kept."""

import csv
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, starmap, zip_longest
from pathlib import Path
from typing import NamedTuple

from lingua_flax.data.cleaning import other_formats, tmx
from lingua_flax.data.cleaning.encodings import Line, code_page, read_lines
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.corpora.pair_files import json_pair
from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted

log = logging.getLogger(__name__)

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
FORMATS = (".tsv", ".csv", ".xlsx", ".jsonl", ".tmx", ".xlf", ".xliff", ".po")
WITH_COLUMNS = (".tsv", ".csv", ".xlsx", ".jsonl")
SAMPLED = 1000  # translation units that tell which languages a TMX file has
MAX_LINES = 50  # of a row of a CSV file
_SEPARATOR = re.compile(
    r'"?sep=([^"])"?', re.IGNORECASE
)  # a line by which Excel is told the delimiter of the next ones


class Row(NamedTuple):
    """A pair and the line where it begins, or what is there and why it is no pair; `garbled` as in `Line`."""

    line: int
    source: str
    target: str
    fault: str = ""
    garbled: str = ""


def format_of(paths: Sequence[Path]) -> str:
    """Returns one of FORMATS, or "" for two text files; raises UserError if there is a file too many or too few."""
    path = paths[0].with_suffix("") if paths[0].suffix.lower() in COMPRESSED else paths[0]
    kind = path.suffix.lower() if path.suffix.lower() in FORMATS else ""
    if len(paths) != (1 if kind else 2):
        names = ", ".join(map(str, paths))
        raise UserError(f"{names}: give two text files, or one whose name ends in {', '.join(FORMATS)} (or .gz etc.)")
    if kind == ".xlsx" and path is not paths[0]:
        raise UserError(f"{paths[0]}: spreadsheets are packed already; decompress it")
    return kind


def read_rows(
    paths: Sequence[Path],
    languages: tuple[str, str],
    columns: Sequence[str] = (),
    encoding: str | None = None,
    advance: Callable[[int], object] = lambda size: None,
) -> Iterator[Row]:
    """Returns the rows of two text files, or of one file with both sides.

    A language may be "" if unknown, but not for TMX. Columns are names, numbers, or keys of JSON objects. `encoding` is
    that of lines that are not UTF-8, by default that of Windows for the language; `advance` is as for `read_lines`.
    Raises UserError if a file cannot be read, or does not have the columns.
    """
    kind = format_of(paths)
    pages = [encoding or code_page(known) for known in ([languages] if kind else [[each] for each in languages])]
    first, *second = (read_lines(path, page, advance) for path, page in zip(paths, pages, strict=True))
    match kind:
        case ".tsv":
            table = ((line, line.text.split("\t")) for line in first)
            return _table_rows(table, paths[0], columns, has_header=False)
        case ".csv":
            return _table_rows(_csv(first), paths[0], columns, has_header=True)
        case ".xlsx":
            return _table_rows(other_formats.read_xlsx(paths[0]), paths[0], columns, has_header=True)
        case ".po":
            return starmap(Row, other_formats.read_po(first, paths[0]))
        case ".xlf" | ".xliff":
            return starmap(Row, other_formats.read_xliff(first, paths[0]))
        case ".jsonl":
            keys = (columns[0], columns[1]) if columns else languages
            return _rows(first, lambda text: json_pair(text, keys, one_line=False))
        case ".tmx":
            return _rows(tmx.read_units(first), lambda text: tmx.unit_pair(text, languages))
    return _aligned(paths, first, *second)


def _aligned(paths: Sequence[Path], source: Iterable[Line], target: Iterable[Line]) -> Iterator[Row]:
    ended = Line(0, "")
    for number, (first, second) in enumerate(zip_longest(source, target, fillvalue=ended), start=1):
        shorter = [path for path, line in zip(paths, (first, second), strict=True) if line is ended]
        fault = f"{shorter[0]} has fewer lines" if shorter else ""
        yield Row(number, first.text, second.text, fault, second.garbled or first.garbled)


def _rows(records: Iterable[Line], pair_of: Callable[[str], Pair]) -> Iterator[Row]:
    """Yields the pair in the text of each record, or that text and why there is none."""
    for record in records:
        try:
            yield Row(record.number, *pair_of(record.text), garbled=record.garbled)
        except (ValueError, RecursionError) as error:
            yield Row(record.number, record.text, "", str(error), record.garbled)


def _csv(lines: Iterator[Line]) -> Iterator[tuple[Line, list[str]]]:
    """Yields the text and the cells of each row; lines are joined as long as a quote is open.

    A quote that is not closed within MAX_LINES is part of the text, so that it does not swallow what follows.
    """
    waiting = deque(islice(lines, 1))  # lines that have been read, but belong to no row yet
    if told := _SEPARATOR.fullmatch(waiting[0].text if waiting else ""):
        waiting = deque(islice(lines, 1))
    delimiter = told[1] if told else max(",;\t|", key=waiting[0].text.count) if waiting else ","
    while waiting:
        used: list[Line] = []
        try:
            cells = next(csv.reader(_take(waiting, lines, used), delimiter=delimiter, strict=True))
        except csv.Error:
            cells = used[0].text.split(delimiter)
            waiting.extendleft(used[:0:-1])
            del used[1:]
        yield Line(used[0].number, "\n".join(line.text for line in used), "".join(line.garbled for line in used)), cells
        waiting.extend(islice(lines, 0 if waiting else 1))


def _take(waiting: deque[Line], lines: Iterator[Line], used: list[Line]) -> Iterator[str]:
    """Moves lines to those that are used, as a reader asks for them."""
    while len(used) < MAX_LINES and (line := waiting.popleft() if waiting else next(lines, None)):
        used.append(line)
        yield f"{line.text}\n"


def _table_rows(
    table: Iterator[tuple[Line, list[str]]], path: Path, columns: Sequence[str], *, has_header: bool
) -> Iterator[Row]:
    """Yields the rows of a table; a first row is the header if it has names, or if there may be one and no columns."""
    chosen, width, remedy = [0, 1], 2, ""
    for number, (line, cells) in enumerate(table):
        if number == 0 and columns:
            chosen, width = [_index(name, cells, path) for name in columns], len(cells)
        elif number == 0 and len(cells) > 2:
            remedy = f"; choose two with --columns, of {', '.join(cells)}"
        if number == 0 and (has_header if not columns else not all(map(str.isdecimal, columns))):
            log.info("%s: line %d is the header: %s", path, line.number, ", ".join(cells))
        elif len(cells) == width:
            yield Row(line.number, cells[chosen[0]], cells[chosen[1]], garbled=line.garbled)
        else:
            count = counted(len(cells), "column")
            yield Row(line.number, line.text, "", f"{count}, not {width}{remedy}", line.garbled)


def _index(name: str, header: list[str], path: Path) -> int:
    if name in header:
        return header.index(name)
    if name.isdecimal() and 0 < int(name) <= len(header):
        return int(name) - 1
    raise UserError(
        f'{path}: there is no column "{name}"; the first line has {", ".join(header)}: choose two with --columns'
    )


def tmx_languages(path: Path) -> tuple[str, str]:
    """Returns the two languages of a TMX file; raises UserError if it is a pipe, or unless its first units have two."""
    if path.is_fifo():
        raise UserError(f"{path}: a pipe can be read only once; give --source-language and --target-language")
    found: dict[str, str] = {}
    for unit in islice(tmx.read_units(read_lines(path, code_page([]))), SAMPLED):
        with suppress(ValueError):
            for language, _ in tmx.read_variants(unit.text):
                found.setdefault(tmx.code(language), language)
    if len(found) != 2:
        languages = f"it has {', '.join(found.values()) or 'no text'}"
        raise UserError(f"{path}: {languages}; choose two with --source-language and --target-language")
    source, target = found.values()
    return source, target
