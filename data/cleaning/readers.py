"""Pairs from two text files, or from one TSV, CSV, JSON-lines or TMX file, each with its line; bad rows are kept."""

import csv
import logging
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from lingua_flax.data.cleaning.encodings import Line, code_page, read_lines
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.corpora.pair_files import json_pair
from lingua_flax.host.errors import UserError

log = logging.getLogger(__name__)

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
FORMATS = (".tsv", ".csv", ".jsonl", ".tmx")
SAMPLED = 1000  # translation units that tell which languages a TMX file has
MAX_LINES = 50  # of a row of a CSV file
_UNIT = re.compile(r"<tu[\s>].*?</tu>", re.DOTALL)
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_NATIVE_CODE = ("bpt", "ept", "it", "ph", "ut")  # elements of a segment that hold markup of its program


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
        case ".jsonl":
            keys = (columns[0], columns[1]) if columns else languages
            return _rows(first, lambda text: json_pair(text, keys, one_line=False))
        case ".tmx":
            return _rows(_units(first), lambda text: _unit_pair(text, languages))
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
    waiting = list(islice(lines, 1))  # lines that have been read, but belong to no row yet
    delimiter = max(",;\t|", key=waiting[0].text.count) if waiting else ","
    while waiting:
        number, text, garbled = waiting[0]
        used, cells = 1, text.split(delimiter)
        for count in range(1, MAX_LINES + 1):
            waiting.extend(islice(lines, max(0, count - len(waiting))))
            joined = "\n".join(line.text for line in waiting[:count])
            with suppress(csv.Error):
                cells = next(csv.reader([joined], delimiter=delimiter, strict=True), [""])
                used, text, garbled = count, joined, "".join(line.garbled for line in waiting[:count])
                break
        yield Line(number, text, garbled), cells
        waiting = waiting[used:] or list(islice(lines, 1))


def _table_rows(
    table: Iterator[tuple[Line, list[str]]], path: Path, columns: Sequence[str], *, has_header: bool
) -> Iterator[Row]:
    """Yields the rows of a table; a first row is the header if it has names, or if there may be one and no columns."""
    chosen, width = [0, 1], 2
    for number, (line, cells) in enumerate(table):
        if number == 0 and columns:
            chosen, width = [_index(name, cells, path) for name in columns], len(cells)
        if number == 0 and (has_header if not columns else not all(map(str.isdecimal, columns))):
            log.info("%s: line 1 is the header: %s", path, ", ".join(cells))
        elif len(cells) == width:
            yield Row(line.number, cells[chosen[0]], cells[chosen[1]], garbled=line.garbled)
        else:
            count = f"{len(cells)} column{'s' * (len(cells) != 1)}, not {width}"
            yield Row(line.number, line.text, "", count, line.garbled)


def _index(name: str, header: list[str], path: Path) -> int:
    if name in header:
        return header.index(name)
    if name.isdecimal() and 0 < int(name) <= len(header):
        return int(name) - 1
    raise UserError(f'{path}: there is no column "{name}"; the first line has {", ".join(header)}')


def tmx_languages(path: Path) -> tuple[str, str]:
    """Returns the two languages of a TMX file; raises UserError if it is a pipe, or unless its first units have two."""
    if path.is_fifo():
        raise UserError(f"{path}: a pipe can be read only once; give --source-language and --target-language")
    found: dict[str, None] = {}
    for unit in islice(_units(read_lines(path, code_page([]))), SAMPLED):
        with suppress(ValueError):
            found |= dict.fromkeys(_segments(unit.text))
    if len(found) != 2:
        languages = f"it has {', '.join(found) or 'no text'}"
        raise UserError(f"{path}: {languages}; choose two with --source-language and --target-language")
    source, target = found
    return source, target


def _units(lines: Iterable[Line]) -> Iterator[Line]:
    """Yields the translation units of a TMX file as text, each with the line where it begins.

    Each is parsed by itself, so that a damaged one does not end the run, and a file cannot declare entities.
    """
    text, number, garbled = "", 1, ""  # what has been read after the last unit, and the line where that begins
    for line in lines:
        text, garbled = f"{text}{line.text}\n", garbled or line.garbled
        if "</tu>" in line.text:
            end = 0
            for match in _UNIT.finditer(text):
                number += text.count("\n", end, match.start())
                yield Line(number, match[0], garbled)
                number, end = number + match[0].count("\n"), match.end()
            text, garbled = text[end:], ""


def _segments(unit: str) -> dict[str, str]:
    """Returns the text in each language, without the codes of programs; raises ValueError if it is not valid XML."""
    try:
        root = ElementTree.fromstring(unit)
    except ElementTree.ParseError as error:
        raise ValueError(f"not valid XML ({error.msg})") from error
    for code in (element for element in root.iter() if element.tag in _NATIVE_CODE):
        tail = code.tail
        code.clear()
        code.tail = tail
    texts = [(each.get(_LANGUAGE) or each.get("lang") or "", each.find("seg")) for each in root.iter("tuv")]
    return {language: "".join(segment.itertext()) for language, segment in texts if segment is not None}


def _unit_pair(unit: str, languages: Sequence[str]) -> Pair:
    """Returns the first text in each language, of any region if none is wanted; raises ValueError if one is missing."""
    segments, texts = _segments(unit), []
    for wanted in languages:
        found = (text for language, text in segments.items() if _code(language).startswith(_code(wanted)))
        if (text := next(found, None)) is None:
            raise ValueError(f"no text in {wanted}, only in {', '.join(segments) or 'no language'}")
        texts.append(text)
    return Pair(*texts)


def _code(language: str) -> str:
    return f"{language}-".replace("_", "-").casefold()
