"""From pairs to a prepared corpus: what is left out of train, and what is held out where a split is missing.

The pairs are streamed, never held in memory. A pair with an empty side teaches nothing and is left out of train; the
other splits keep every pair, because every one is scored. Where validation or test is not given, a part of train is
held out for it: all the pairs of some source sentences, so that no sentence is on both sides.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from data.corpora import storage
from data.corpora.corpus import Pair

SPLITS = ("train", "validation", "test")
_HELD_OUT_PAIRS = 1000
_HELD_OUT_PART = 20  # or one pair in twenty, whichever is less


class NoPairsError(Exception):
    """A split has no pair, or train none without an empty side."""

    def __init__(self, split: str, reason: str) -> None:
        super().__init__(f"{split}: {reason}")
        self.split = split
        self.reason = reason


def write_splits(
    folder: Path,
    splits: Mapping[str, Callable[[], Iterable[Pair]]],
    notes: Sequence[str] = (),
    *,
    hold_out: bool = True,
) -> None:
    """Write a corpus, train first, of what each split's function gives when it is called, and called again.

    Args:
        hold_out: whether a missing split is to be held out of train.

    Raises:
        NoPairsError: there is nothing to write for a split that is given.
    """
    missing = [split for split in SPLITS if split not in splits] if hold_out else []
    held_out = _choose_held_out(_train_hashes(splits["train"]()), missing) if missing else {}
    first = [split for split in SPLITS if split in splits or split in held_out.values()]
    writer = storage.CorpusWriter(folder, [*first, *(split for split in splits if split not in SPLITS)])
    left_out = 0
    for name, read in reversed(list(splits.items())):  # train last: mistakes elsewhere show before that long work
        for pair in read():
            if name != "train":
                writer.write(name, pair)
            elif _is_empty(pair):
                left_out += 1
            else:
                writer.write(held_out.get(_hash(pair.source), "train") if held_out else "train", pair)
        if not writer.counts[name]:
            raise NoPairsError(name, "every pair has an empty side" if left_out else "no pairs in it")
    writer.close([*notes, *_notes(writer.counts, left_out, missing)])


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


def _train_hashes(train: Iterable[Pair]) -> Iterator[int]:
    return (_hash(pair.source) for pair in train if not _is_empty(pair))


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
