"""The user's own corpus: two aligned text files a split, or one TSV or JSON-lines file, each plain or as .gz.

The files are streamed, never held in memory. A pair with an empty side teaches nothing and is left out of train;
validation and test keep every line, because every line is scored. Where validation or test is not given, a part of
train is held out for it: all the pairs of some source sentences, so that no sentence is on both sides.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from configs.cache import cache_directory
from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora import storage
from data.corpora.corpus import Corpus, Pair
from data.lines import read_lines

_FORMAT = 1  # raise it when the same files would be prepared differently
_SPLITS = ("train", "validation", "test")
_HELD_OUT_PAIRS = 1000
_HELD_OUT_PART = 20  # or one pair in twenty, whichever is less


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


def open_text(config: DataConfig) -> Corpus:
    """Open the corpus in the files that the config names.

    Raises:
        UserError: a file is missing or wrong, or the cache folder cannot be written.
        RunError: the disk is full.
    """
    languages = (config.source_language, config.target_language)
    files = _files(config)
    digests = [(part.split, [(_kind(path), _sha256(path)) for path in part.paths]) for part in files]
    key = storage.fingerprint("text", _FORMAT, languages, digests)
    cache = cache_directory(config.cache_directory)
    folder = storage.prepare(cache, "text", key, lambda partial: _write(partial, files, languages))
    splits, notes = storage.read_corpus(folder)
    return Corpus("text", *languages, key, splits, notes)


def _files(config: DataConfig) -> list[SplitFiles]:
    """Return the files of train and of each further split that is given.

    Raises:
        UserError: a file is not given that has to be, or one is given that cannot go with the others.
    """
    files = []
    for split in _SPLITS:
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


# Writing the prepared corpus.


def _write(folder: Path, files: Sequence[SplitFiles], languages: tuple[str, str]) -> None:
    given = {part.split: part for part in files}
    missing = [split for split in _SPLITS if split not in given]
    held_out = _choose_held_out(_train_hashes(given["train"], languages), missing) if missing else {}
    splits = [split for split in _SPLITS if split in given or split in held_out.values()]
    writer = storage.CorpusWriter(folder, splits)
    left_out = 0
    for part in reversed(files):  # the small ones first: a mistake there shows before the long work on train
        for pair in read_pairs(part, languages):
            if part.split != "train":
                writer.write(part.split, pair)
            elif _is_empty(pair):
                left_out += 1
            else:
                writer.write(held_out.get(_hash(pair.source), "train") if held_out else "train", pair)
        if not writer.counts[part.split]:
            reason = "every pair has an empty side" if left_out else "no pairs in it"
            raise UserError(f"{part.source}: {reason}; data.{part.split}_source has to name at least one pair")
    writer.close(_notes(writer.counts, left_out, missing))


def _is_empty(pair: Pair) -> bool:
    return not pair.source.strip() or not pair.target.strip()


def _notes(counts: Mapping[str, int], left_out: int, missing: Sequence[str]) -> list[str]:
    notes = []
    if left_out:
        notes.append(f"left out {left_out:,} training pair{'s' * (left_out != 1)} with an empty side")
    held_out = [split for split in missing if split in counts]
    if held_out:
        total = counts["train"] + sum(counts[split] for split in held_out)
        first = f"held out {counts[held_out[0]]:,} of {total:,} pairs for {held_out[0]}"
        others = [f" and {counts[split]:,} for {split}" for split in held_out[1:]]
        notes.append(f"{first}{''.join(others)}, since {'none were' if others else 'it was not'} given")
    elif missing:
        notes.append(f"there is no {' or '.join(missing)} split: too few different source sentences to hold some out")
    return notes


# Holding out.


def _train_hashes(train: SplitFiles, languages: tuple[str, str]) -> Iterator[int]:
    return (_hash(pair.source) for pair in read_pairs(train, languages) if not _is_empty(pair))


def _hash(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest())


def _choose_held_out(hashes: Iterable[int], splits: Sequence[str]) -> dict[int, str]:
    """Choose source sentences, by their hashes, for the splits; the same ones in whatever order they come.

    A split gets about _HELD_OUT_PAIRS pairs or one part in _HELD_OUT_PART, whichever is less, and at least one. Train
    keeps at least one source sentence; where there are too few for that, nothing is held out.
    """
    pairs_of, total = _count_smallest(hashes, limit=len(splits) * _HELD_OUT_PAIRS + 1)
    if len(pairs_of) <= len(splits):
        return {}
    wanted = min(_HELD_OUT_PAIRS, total // _HELD_OUT_PART)
    left = sorted(pairs_of)
    chosen: dict[int, str] = {}
    for i, split in enumerate(splits):
        most = len(left) - (len(splits) - i)  # one for each split to come, and one for train
        picked: list[int] = []
        size = 0
        for candidate in left:
            if len(picked) < most and size + pairs_of[candidate] <= wanted:
                picked.append(candidate)
                size += pairs_of[candidate]
        if not picked:  # few pairs, or every source is there many times: take the rarest
            picked = [min(left, key=lambda candidate: pairs_of[candidate])]
        chosen.update(dict.fromkeys(picked, split))
        left = [candidate for candidate in left if candidate not in chosen]
    return chosen


def _count_smallest(hashes: Iterable[int], limit: int) -> tuple[dict[int, int], int]:
    """Count how often each of the limit smallest hashes occurs, and all hashes, in bounded memory."""
    counts: dict[int, int] = {}
    heap: list[int] = []  # the kept hashes, negated: the largest is on top
    total = 0
    for value in hashes:
        total += 1
        if value in counts:
            counts[value] += 1
        elif len(heap) < limit:
            heapq.heappush(heap, -value)
            counts[value] = 1
        elif value < -heap[0]:
            # It cannot have been among the smallest before, or it would be now: the count starts at its first.
            del counts[-heapq.heapreplace(heap, -value)]
            counts[value] = 1
    return counts, total
