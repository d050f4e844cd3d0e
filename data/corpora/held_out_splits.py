"""Writes a prepared corpus from pairs: drops unusable training pairs and holds out missing splits.

The pairs are read once and never held in memory. A pair with an empty side teaches nothing and is left out of train;
the other splits keep every pair, because every pair is scored. If validation or test is not given, part of train is
held out for it: all pairs of some source sentences, so that train and the held-out split share no source sentence.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.corpora.prepared_corpus import CHUNK, SplitWriter, StoredPairs, write_contents
from lingua_flax.data.text_files import chunks

SPLITS = ("train", "validation", "test")
_HELD_OUT_PAIRS = 1000
_HELD_OUT_DIVISOR = 20  # or one pair in twenty, whichever is less
_COUNTED = 1 << 14  # hashes sorted at a time
_UNDIVIDED = "undivided"


class NoPairsError(Exception):
    """A split has no pairs, or every pair of train has an empty side."""

    def __init__(self, split: str, reason: str) -> None:
        super().__init__(f"{split}: {reason}")
        self.split = split
        self.reason = reason


def write_splits(
    folder: Path, splits: Mapping[str, Iterable[Pair]], notes: Sequence[str] = (), *, hold_out: bool = True
) -> None:
    """Writes a corpus of these splits, train first; with `hold_out`, missing ones are held out of train.

    Raises NoPairsError if there is nothing to write for one of the splits.
    """
    missing = [split for split in SPLITS if split not in splits] if hold_out else []
    writers: dict[str, SplitWriter] = {}
    left_out = 0
    for name, pairs in reversed(list(splits.items())):  # train last, so that errors in short splits show first
        with SplitWriter(folder, _UNDIVIDED if missing and name == "train" else name) as writer:
            for chunk in chunks(pairs, CHUNK):
                kept = [pair for pair in chunk if pair[0].strip() and pair[1].strip()] if name == "train" else chunk
                left_out += len(chunk) - len(kept)
                writer.write(kept)
        if not writer.count:
            raise NoPairsError(name, "every pair has an empty side" if left_out else "no pairs in it")
        writers[name] = writer
    if missing:
        writers |= _divide(folder, StoredPairs(folder, _UNDIVIDED, writers["train"].count, sha256=""), missing)
    order = sorted(writers, key=lambda name: (*SPLITS, *splits).index(name))
    counts = {name: writer.count for name, writer in writers.items()}
    held_out = [split for split in missing if split in writers]
    notes = [*notes, *_notes(counts, left_out, missing, held_out)]
    write_contents(folder, {name: writers[name] for name in order}, notes, held_out)


def _notes(counts: Mapping[str, int], left_out: int, missing: Sequence[str], held_out: Sequence[str]) -> list[str]:
    notes = []
    if left_out:
        notes.append(f"left out {left_out:,} training pair{'s' * (left_out != 1)} with an empty side")
    if held_out:
        total = counts["train"] + sum(counts[split] for split in held_out)
        first = f"held out {counts[held_out[0]]:,} of {total:,} pairs for {held_out[0]}"
        others = [f" and {counts[split]:,} for {split}" for split in held_out[1:]]
        notes.append(f"{first}{''.join(others)}, since {'none were' if others else 'it was not'} given")
    elif missing:
        notes.append(f"there is no {' or '.join(missing)} split: too few different source sentences to hold some out")
    return notes


# Holding out.


def _divide(folder: Path, undivided: StoredPairs, missing: Sequence[str]) -> dict[str, SplitWriter]:
    """Divides the pairs into train and the missing splits, in their original order, and removes the undivided files."""
    path = folder / f"{_UNDIVIDED}.hashes"
    with path.open("wb") as stream:
        for sources, _ in undivided.blocks():
            digests = [hashlib.blake2b(source, digest_size=8).digest() for source in sources.split()]
            stream.write(np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).data)
    hashes = np.memmap(path, np.uint64, "r")
    held_out = _choose_held_out(hashes, missing)
    with ExitStack() as stack:
        writers = {name: stack.enter_context(SplitWriter(folder, name)) for name in ("train", *held_out)}
        for begin, (sources, targets) in zip(itertools.count(0, CHUNK), undivided.blocks(), strict=False):
            split_numbers = np.zeros(len(sources.lengths), np.uint8)  # 0 is train
            for number, chosen in enumerate(held_out.values(), start=1):
                split_numbers[np.isin(hashes[begin : begin + CHUNK], chosen)] = number
            for number, writer in enumerate(writers.values()):
                writer.write_texts(sources.where(split_numbers == number), targets.where(split_numbers == number))
    for path in folder.glob(f"{_UNDIVIDED}.*"):
        path.unlink()
    return writers


def _choose_held_out(hashes: np.ndarray, splits: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the hashes of the source sentences to hold out for each split, whatever the order of the pairs is.

    A split gets about _HELD_OUT_PAIRS pairs or 1 / _HELD_OUT_DIVISOR of all, whichever is less, and at least one. Train
    keeps at least one source sentence; if there are too few for that, nothing is held out.
    """
    pairs_by_source = _count_smallest(hashes, limit=len(splits) * _HELD_OUT_PAIRS + 1)
    if len(pairs_by_source) <= len(splits):
        return {}
    max_pairs = min(_HELD_OUT_PAIRS, len(hashes) // _HELD_OUT_DIVISOR)
    remaining = list(pairs_by_source)
    chosen = {}
    for i, split in enumerate(splits):
        max_sources = len(remaining) - (len(splits) - i)  # leaves one for each later split and one for train
        picked: list[int] = []
        size = 0
        for candidate in remaining:
            if len(picked) < max_sources and size + pairs_by_source[candidate] <= max_pairs:
                picked.append(candidate)
                size += pairs_by_source[candidate]
        if not picked:  # few pairs, or every source occurs many times: take the rarest
            picked = [min(remaining, key=lambda candidate: pairs_by_source[candidate])]
        chosen[split] = np.array(picked, np.uint64)
        remaining = sorted(set(remaining) - set(picked))
    return chosen


def _count_smallest(hashes: np.ndarray, limit: int) -> dict[int, int]:
    """Returns the number of occurrences of each of the `limit` smallest hashes, ascending, in bounded memory."""
    smallest, counts = hashes[:0], np.zeros(0, np.int64)
    for begin in range(0, len(hashes), _COUNTED):
        # A hash that is cut off here can never return: `limit` smaller ones have been found.
        values, occurrences = np.unique(hashes[begin : begin + _COUNTED], return_counts=True)
        smallest, places = np.unique(np.concatenate([smallest, values]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([counts, occurrences])).astype(np.int64)[:limit]
        smallest = smallest[:limit]
    return dict(zip(smallest.tolist(), counts.tolist(), strict=True))
