"""Writes a prepared corpus from pairs: drops unusable training pairs and holds out missing splits.

The pairs are read once and never held in memory. A pair with an empty side teaches nothing and is left out of train. If
validation or test is not given, all pairs of some source sentences are held out of train for it. A run stores the
hashes of these pairs, so that the corpus can be divided in the same way when it has grown, and for a run in the other
direction, where their sources are targets.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.corpora.prepared_corpus import CHUNK, CONTENTS_NAME, SplitWriter, StoredPairs
from lingua_flax.data.text_files import chunks
from lingua_flax.host.digests import short_digest
from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted

SPLITS = ("train", "validation", "test")
_HELD_OUT_PAIRS = 1000
_HELD_OUT_DIVISOR = 20  # or one pair in twenty, whichever is less
_COUNTED = 1 << 14  # hashes counted at a time
_LEFT_OUT = 255  # the number of no split
_UNDIVIDED = "undivided"

HeldOut = dict[str, Counter[tuple[int, int]]]  # for each split, the hashes of both sides of its pairs


def write_splits(
    folder: Path,
    splits: Mapping[str, Iterable[Pair]],
    notes: Sequence[str] = (),
    *,
    hold_out: bool = True,
    held_out_file: Path | None = None,
    describe: Callable[[str, str], str] = "{}: {}".format,
) -> None:
    """Writes a corpus of these splits, train first; with `hold_out`, missing ones are held out of train.

    `held_out_file` has the pairs that a run has held out: they are held out again if at least half of their sources are
    here, as sources or else as targets. Raises UserError if the file cannot be read, or there is nothing to write
    for a split, which is described by the name of the split and the reason.
    """
    missing = [split for split in SPLITS if split not in splits] if hold_out else []
    writers: dict[str, SplitWriter] = {}
    left_out, by_target = 0, False
    for name, pairs in reversed(list(splits.items())):  # train last, so that errors in short splits show first
        with SplitWriter(folder, _UNDIVIDED if missing and name == "train" else name) as writer:
            for chunk in chunks(pairs, CHUNK):
                kept = [pair for pair in chunk if pair[0].strip() and pair[1].strip()] if name == "train" else chunk
                left_out += len(chunk) - len(kept)
                writer.write(kept)
        if not writer.count:
            raise UserError(describe(name, "every pair has an empty side" if left_out else "no pairs in it"))
        writers[name] = writer
    if missing:
        before = read_held_out(held_out_file) if held_out_file else {}
        undivided = StoredPairs(folder, _UNDIVIDED, writers["train"].count, sha256="")
        divided, added, by_target = _divide(folder, undivided, missing, before)
        writers |= divided
        notes = [*notes, *added]
    order = sorted(writers, key=lambda name: (*SPLITS, *splits).index(name))
    counts = {name: writer.count for name, writer in writers.items()}
    held_out = [split for split in missing if split in writers]
    contents = {
        "splits": {name: writers[name].summary() for name in order},
        "notes": [*notes, *_notes(counts, left_out, missing, held_out)],
        "held_out": held_out,
        "held_out_by_target": by_target,
    }
    (folder / CONTENTS_NAME).write_text(json.dumps(contents), encoding="utf-8")


def _notes(counts: Mapping[str, int], left_out: int, missing: Sequence[str], held_out: Sequence[str]) -> list[str]:
    notes = []
    if left_out:
        notes.append(f"left out {counted(left_out, 'training pair')} with an empty side")
    if held_out:
        total = counts["train"] + sum(counts[split] for split in held_out)
        first = f"held out {counts[held_out[0]]:,} of {total:,} pairs for {held_out[0]}"
        others = [f" and {counts[split]:,} for {split}" for split in held_out[1:]]
        notes.append(f"{first}{''.join(others)}, since {'none were' if others else 'it was not'} given")
    elif missing:
        notes.append(f"there is no {' or '.join(missing)} split: too few different source sentences to hold some out")
    return notes


def held_out_pairs(corpus: Corpus) -> dict[str, list[str]]:
    """Returns the pairs of each held-out split as hashes, in hex and sorted; first that of the side by which it was."""

    def hashed(pair: Pair) -> str:
        sides = reversed(pair) if corpus.held_out_by_target else pair
        return "".join(f"{short_digest(side.encode()):016x}" for side in sides)

    return {name: sorted(map(hashed, corpus.split(name))) for name in corpus.held_out}


def read_held_out(file: Path) -> HeldOut:
    """Returns the splits in a JSON file with `held_out_pairs`; raises UserError if it is not such a file."""

    def hashes(pair: str) -> tuple[int, int]:
        return int(pair[:16], 16), int(pair[16:], 16)

    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {split: Counter(map(hashes, pairs)) for split, pairs in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{file}: not a file with held-out sources ({error})") from error


def _divide(
    folder: Path, undivided: StoredPairs, missing: Sequence[str], before: HeldOut
) -> tuple[dict[str, SplitWriter], list[str], bool]:
    """Divides the pairs into train and the missing splits, in their original order, and removes the undivided files.

    Also returns a note if they are divided as before, without further pairs of these sources, and whether by targets.
    """
    hashes, by_target = _hashes(folder, undivided, side=0), False
    same = _same_as_before(hashes, missing, before)
    if before and not same:
        of_targets = _hashes(folder, undivided, side=1)
        if same := _same_as_before(of_targets, missing, before):
            hashes, by_target = of_targets, True
    held_out = {split: _by_source(pairs) for split, pairs in same.items()} or _choose_held_out(hashes, missing)
    numbers = {source: number for number, sources in enumerate(held_out.values(), start=1) for source in sources}
    here = sum(same.values(), Counter[tuple[int, int]]())
    if same:
        blocks = _blocks(undivided, hashes, numbers, by_target)
        here &= Counter(pair for _, pairs in blocks for pair in pairs.values() if pair in here)
    # Others take the places of pairs that are not here any more; all do if nothing was held out before.
    others = sum(held_out.values(), Counter[int]()) - _by_source(here)
    remaining = Counter[Any](here) + Counter[Any](others)
    with ExitStack() as stack:
        writers = {name: stack.enter_context(SplitWriter(folder, name)) for name in ("train", *held_out)}
        for sides, pairs in _blocks(undivided, hashes, numbers, by_target):
            split_numbers = np.zeros(len(sides[0]), np.uint8)  # 0 is train
            for place, pair in pairs.items():
                key = pair if remaining[pair] > 0 else pair[0]
                split_numbers[place] = numbers[pair[0]] if remaining[key] > 0 else _LEFT_OUT
                remaining[key] -= 1
            for number, writer in enumerate(writers.values()):
                is_here = (split_numbers == number).tolist()
                writer.write_encoded(*(list(itertools.compress(side, is_here)) for side in sides))
    for path in folder.glob(f"{_UNDIVIDED}.*"):
        path.unlink()
    again = sum(writer.count for name, writer in writers.items() if name != "train")
    added = len(hashes) - writers["train"].count - again
    return writers, [_note(same, by_target, again - here.total(), added)] if same else [], by_target


def _note(same: HeldOut, by_target: bool, replaced: int, added: int) -> str:
    then = " and ".join(f"{pairs.total():,}" for pairs in same.values())
    sides = f"{then} pairs, here the targets" if by_target else f"{then} pairs"
    note = f"the sources of data.held_out ({sides}) are held out again; left out {counted(added, 'pair')} added to them"
    instead = f"; {replaced:,} that are not here any more are replaced by others of their sources"
    return note + instead * (replaced > 0)


def _blocks(
    undivided: StoredPairs, hashes: np.ndarray, sources: Iterable[int], by_target: bool
) -> Iterator[tuple[Sequence[Sequence[bytes]], dict[int, tuple[int, int]]]]:
    """Yields both sides of all pairs, CHUNK at a time, and the hashes of those of these sources, by their places."""
    wanted = np.array([*sources], np.uint64)
    for begin, sides in zip(itertools.count(0, CHUNK), undivided.blocks(), strict=False):
        of_block = hashes[begin : begin + CHUNK]
        places = np.flatnonzero(np.isin(of_block, wanted)).tolist()
        others = sides[0 if by_target else 1]
        yield sides, {place: (int(of_block[place]), short_digest(others[place])) for place in places}


def _by_source(pairs: Counter[tuple[int, int]]) -> Counter[int]:
    counts = Counter[int]()
    for (source, _), count in pairs.items():
        counts[source] += count
    return counts


def _hashes(folder: Path, undivided: StoredPairs, *, side: int) -> np.ndarray:
    """Returns the hashes of all sources, side 0, or targets, side 1, in a file that belongs to the undivided ones."""
    path = folder / f"{_UNDIVIDED}.{side}.hashes"
    with path.open("wb") as stream:
        for block in undivided.blocks():
            stream.write(np.array(list(map(short_digest, block[side])), np.uint64).data)
    return np.memmap(path, np.uint64, "r")


def _same_as_before(hashes: np.ndarray, splits: Sequence[str], before: HeldOut) -> HeldOut:
    """Returns these splits as they were before; nothing if there was none, or half of its sources are not here."""
    for split in splits:
        wanted = np.array([*_by_source(before.get(split, Counter()))], np.uint64)
        found = set[int]()
        for begin in range(0, len(hashes), _COUNTED):
            found.update(np.intersect1d(hashes[begin : begin + _COUNTED], wanted).tolist())
        if not found or 2 * len(found) < len(wanted):
            return {}
    return {split: before[split] for split in splits}


def _choose_held_out(hashes: np.ndarray, splits: Sequence[str]) -> dict[str, Counter[int]]:
    """Returns which source sentences to hold out for each split, whatever the order of the pairs is.

    A split gets about _HELD_OUT_PAIRS pairs or 1 / _HELD_OUT_DIVISOR of all, whichever is less, and at least one. Train
    keeps at least one source sentence; if there are too few for that, nothing is held out.
    """
    pairs_by_source, limit, largest = Counter[int](), len(splits) * _HELD_OUT_PAIRS + 1, (1 << 64) - 1
    for begin in range(0, len(hashes), _COUNTED):
        block = hashes[begin : begin + _COUNTED]
        pairs_by_source.update(block[block <= largest].tolist())
        # A hash that is cut off here can never return: `limit` smaller ones have been found.
        pairs_by_source = Counter({source: pairs_by_source[source] for source in sorted(pairs_by_source)[:limit]})
        largest = max(pairs_by_source) if len(pairs_by_source) == limit else largest
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
        chosen[split] = Counter({source: pairs_by_source[source] for source in picked})
        remaining = sorted(set(remaining) - set(picked))
    return chosen
