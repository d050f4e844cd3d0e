"""Pairs in files: two aligned text files, one TSV or JSON-lines file, each plain or as .gz; and what files are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from data.corpora.corpus import Pair
from data.text_files import read_lines, unreadable
from host.errors import UserError


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def format_of(path: Path) -> str:
    """Return what the name says of the format, .gz aside: .tsv, .jsonl, or anything else for plain lines."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return name.suffix.lower() if name.suffix.lower() in (".tsv", ".jsonl") else "lines"


def read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Yield line i of both files as pair i.

    Raises:
        UserError: a file cannot be read, or they differ in length.
    """
    sides = read_lines(source), read_lines(target)
    for before, (first, second) in enumerate(zip_longest(*sides)):
        if first is None or second is None:
            longer = before + 1 + sum(1 for side in sides for _ in side)
            lines = (before, longer) if first is None else (longer, before)
            counts = f"{source} has {lines[0]:,} lines and {target} has {lines[1]:,}"
            raise UserError(f"{counts}; line i of one has to be the translation of line i of the other")
        yield Pair(first, second)


def read_tsv(path: Path) -> Iterator[Pair]:
    """Yield the two columns of each line.

    Raises:
        UserError: the file cannot be read, or a line has another number of columns.
    """
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            found = f"{len(columns)} column" + "s" * (len(columns) != 1)
            raise UserError(f"{path}, line {number}: {found}; there have to be two, source<TAB>target")
        yield Pair(*columns)


def read_json(path: Path, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yield what the object in each line holds under its languages, or else under source and target.

    Raises:
        UserError: the file cannot be read, or a line is not such an object.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield _pair_of_json(line, languages)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def _pair_of_json(line: str, languages: tuple[str, str]) -> Pair:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error}); every line has to be one object") from error
    possible = [languages, ("source", "target")] if languages[0] != languages[1] else [("source", "target")]
    keys = next((keys for keys in possible if isinstance(fields, dict) and fields.keys() >= set(keys)), None)
    if keys is None:
        wanted = " or ".join(f'"{source}" and "{target}"' for source, target in possible)
        raise ValueError(f"not an object with the keys {wanted}")
    for key in keys:
        if not isinstance(fields[key], str):
            raise ValueError(f'"{key}" is not a string')
        if "\n" in fields[key]:
            raise ValueError(f'"{key}" holds a line break; a sentence has to be one line')
        fields[key].encode()  # a lone surrogate is no text, and the UnicodeEncodeError is a ValueError
    return Pair(fields[keys[0]], fields[keys[1]])
