"""Reads pairs from two aligned text files, or from one TSV or JSON-lines file, plain or as .gz."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.text_files import read_lines, unreadable_as_user_error
from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted

SIDES = ("source", "target")  # keys of a pair in any languages


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hex; raises UserError if it cannot be read."""
    with unreadable_as_user_error(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def format_of(path: Path) -> str:
    """Returns the format of a file by its name without .gz: ".tsv", ".jsonl", or else "lines"."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return name.suffix.lower() if name.suffix.lower() in (".tsv", ".jsonl") else "lines"


def read_pairs(paths: Sequence[Path], languages: tuple[str, str]) -> Iterator[Pair]:
    """Yields the pairs of two aligned files, or of one that holds both sides."""
    if len(paths) == 2:
        return read_aligned(*paths)
    return read_tsv(*paths) if format_of(paths[0]) == ".tsv" else read_json(paths[0], languages)


def read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Yields line i of both files as pair i; raises UserError if one cannot be read or they differ in length."""
    sides = read_lines(source), read_lines(target)
    for before, (first, second) in enumerate(zip_longest(*sides)):
        if first is None or second is None:
            longer = before + 1 + sum(1 for side in sides for _ in side)
            lines = (before, longer) if first is None else (longer, before)
            counts = f"{source} has {counted(lines[0], 'line')} and {target} has {lines[1]:,}"
            rule = "line i of one must be the translation of line i of the other"
            raise UserError(f"{counts}; {rule} (lingua-flax clean tells where they diverge)")
        yield Pair(first, second)


def read_tsv(path: Path) -> Iterator[Pair]:
    """Yields the two columns of each line; raises UserError if a line does not have two."""
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            count = counted(len(columns), "column")
            raise UserError(f"{path}, line {number}: {count}; there must be two, source<TAB>target")
        yield Pair(*columns)


def read_json(path: Path, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yields the values of the languages in the object on each line, or if absent, those of "source" and "target".

    They may be in an object of their own, "translation".
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield json_pair(line, languages)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def json_keys(languages: tuple[str, str]) -> tuple[str, str]:
    """Returns the keys under which a pair is best written: its languages, if they differ, for both directions."""
    return languages if languages[0] != languages[1] else SIDES


def json_pair(line: str, languages: tuple[str, str], *, one_line: bool = True) -> Pair:
    """Returns the pair in the object on a line, as described for `read_json`; raises ValueError if there is none."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error}); every line must be one object") from error
    if isinstance(fields, dict) and isinstance(fields.get("translation"), dict):  # as the Hugging Face hub has pairs
        fields = fields["translation"]
    possible = dict.fromkeys([json_keys(languages), SIDES])
    keys = next((keys for keys in possible if isinstance(fields, dict) and fields.keys() >= set(keys)), None)
    if keys is None:
        wanted = " or ".join(f'"{source}" and "{target}"' for source, target in possible)
        found = f", but with {', '.join(fields) or 'none'}" if isinstance(fields, dict) else ""
        raise ValueError(f"not an object with the keys {wanted}{found}")
    for key in keys:
        if not isinstance(fields[key], str):
            raise ValueError(f'"{key}" is not a string')
        if one_line and "\n" in fields[key]:
            raise ValueError(f'"{key}" contains a line break; a sentence must be one line')
        fields[key].encode()  # a lone surrogate is no valid text: UnicodeEncodeError, which is a ValueError
    return Pair(fields[keys[0]], fields[keys[1]])
