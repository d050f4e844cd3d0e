"""The user's own corpus: two aligned text files a split, or one TSV or JSON-lines file, each plain or as .gz.

The files are streamed, never held in memory. What is left out of train and held out for the other splits: splits.py.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from configs.cache import cache_directory
from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora import storage
from data.corpora.corpus import Corpus, Pair
from data.corpora.splits import SPLITS, NoPairsError, write_splits
from data.lines import read_lines

_FORMAT = 1  # raise it when the same files would be prepared differently


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split; source holds both sides where there is no target."""

    split: str
    source: Path
    target: Path | None

    @property
    def paths(self) -> list[Path]:
        """Both files, or the one."""
        return [self.source, self.target] if self.target else [self.source]


def open_text(config: DataConfig, *, train_only: bool = False) -> Corpus:
    """Open the corpus in the files that the config names; with train_only nothing is held out.

    Raises:
        UserError: a file is missing or wrong, or the cache folder cannot be written.
        RunError: the disk is full.
    """
    languages = (config.source_language, config.target_language)
    files = _files(config)
    digests = [(part.split, [(_kind(path), _sha256(path)) for path in part.paths]) for part in files]
    key = storage.fingerprint("text", _FORMAT, languages, digests, *(["train only"] if train_only else []))
    cache = cache_directory(config.cache_directory)
    folder = storage.prepare(cache, "text", key, lambda partial: _write(partial, files, languages, train_only))
    splits, notes = storage.read_corpus(folder)
    return Corpus("text", *languages, key, splits, notes)


def _files(config: DataConfig) -> list[SplitFiles]:
    """Return the files of train and of each further split that is given.

    Raises:
        UserError: a file is not given that has to be, or one is given that cannot go with the others.
    """
    files = []
    for split in SPLITS:
        source: Path | None = getattr(config, f"{split}_source")
        target: Path | None = getattr(config, f"{split}_target")
        if source is None and target is not None:
            raise UserError(f"data.{split}_target is given without its source; set data.{split}_source too")
        if source is None:
            continue
        both_sides = _kind(source) in (".tsv", ".jsonl")
        if both_sides and target is not None:
            reason = f"data.{split}_source {source} holds both sides, as its name says"
            raise UserError(f"{reason}; leave out data.{split}_target")
        if not both_sides and target is None:
            remedy = f"set data.{split}_target too, or name a .tsv or .jsonl file that holds both sides"
            raise UserError(f"data.{split}_source {source} is given without its target; {remedy}")
        files.append(SplitFiles(split, source.expanduser(), target and target.expanduser()))
    if not files or files[0].split != "train":
        raise UserError('data.name = "text" needs files to train on; set data.train_source and data.train_target')
    return files


def _kind(path: Path) -> str:
    """Return what the name says of the format, .gz aside: .tsv, .jsonl, or anything else for plain lines."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return name.suffix.lower() if name.suffix.lower() in (".tsv", ".jsonl") else "lines"


def _sha256(path: Path) -> str:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: not a regular file; it has to be, because it is read more than once")
    next(read_lines(path), None)  # says what is wrong with a file that cannot be opened
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# Reading pairs.


def read_pairs(files: SplitFiles, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yield the pairs of a split, in the order of its files.

    Raises:
        UserError: a file cannot be read, a line is wrong, or the two files differ in length.
    """
    if files.target is not None:
        return _read_aligned(files.source, files.target)
    return _read_tsv(files.source) if _kind(files.source) == ".tsv" else _read_json(files.source, languages)


def _read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    lines = [0, 0]
    for pair in zip_longest(read_lines(source), read_lines(target)):
        lines = [count + (line is not None) for count, line in zip(lines, pair, strict=True)]
        if None not in pair:
            yield Pair(*pair)
    if lines[0] != lines[1]:
        counts = f"{source} has {lines[0]:,} lines and {target} has {lines[1]:,}"
        raise UserError(f"{counts}; line i of one has to be the translation of line i of the other")


def _read_tsv(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            found = f"{len(columns)} column" + "s" * (len(columns) != 1)
            raise UserError(f"{path}, line {number}: {found}; there have to be two, source<TAB>target")
        yield Pair(*columns)


def _read_json(path: Path, languages: tuple[str, str]) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield _pair_of_json(line, languages)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def _pair_of_json(line: str, languages: tuple[str, str]) -> Pair:
    """Return the pair that a JSON object holds under its languages, or else under source and target.

    Raises:
        ValueError: the line is not such an object.
    """
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


def _write(folder: Path, files: Sequence[SplitFiles], languages: tuple[str, str], train_only: bool) -> None:
    given = {part.split: part for part in files}
    splits = {name: functools.partial(read_pairs, part, languages) for name, part in given.items()}
    try:
        write_splits(folder, splits, hold_out=not train_only)
    except NoPairsError as error:
        remedy = f"data.{error.split}_source has to name at least one pair"
        raise UserError(f"{given[error.split].source}: {error.reason}; {remedy}") from error
