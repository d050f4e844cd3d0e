"""Writes a prepared corpus from pairs: drops unusable training pairs and holds out missing splits.

The pairs are read once and never held in memory. A pair with an empty side teaches nothing and is left out of train. If
validation or test is not given, all pairs of some source sentences are held out of train for it. A run stores the
hashes of these sources, so that the corpus can be divided in the same way when it has grown, and for a run in the other
direction, where they are targets.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.corpora.prepared_corpus import CHUNK, CONTENTS_NAME, SplitWriter, StoredPairs
from lingua_flax.data.text_files import chunks
from lingua_flax.host.digests import short_digest
from lingua_flax.host.errors import UserError

SPLITS = ("train", "validation", "test")
_HELD_OUT_PAIRS = 1000
_HELD_OUT_DIVISOR = 20  # or one pair in twenty, whichever is less
_COUNTED = 1 << 14  # hashes counted at a time
_LEFT_OUT = 255  # the number of no split
_UNDIVIDED = "undivided"

HeldOut = dict[str, Counter[int]]  # for each split, the hashes of its sources and how many pairs each of them has


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

    `held_out_file` has the sources that a run has held out: the same are held out again if the pairs have at least half
    of them, as sources or else as targets. Raises UserError if the file cannot be read, or there is nothing to write
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
        notes.append(f"left out {left_out:,} training pair{'s' * (left_out != 1)} with an empty side")
    if held_out:
        total = counts["train"] + sum(counts[split] for split in held_out)
        first = f"held out {counts[held_out[0]]:,} of {total:,} pairs for {held_out[0]}"
        others = [f" and {counts[split]:,} for {split}" for split in held_out[1:]]
        notes.append(f"{first}{''.join(others)}, since {'none were' if others else 'it was not'} given")
    elif missing:
        notes.append(f"there is no {' or '.join(missing)} split: too few different source sentences to hold some out")
    return notes


def held_out_sources(corpus: Corpus) -> dict[str, list[str]]:
    """Returns the hashes, in hex and sorted, of the sources (or targets) by which each split was held out."""
    side = int(corpus.held_out_by_target)
    sources = {name: (pair[side].encode() for pair in corpus.split(name)) for name in corpus.held_out}
    return {name: sorted(f"{source:016x}" for source in map(short_digest, each)) for name, each in sources.items()}


def read_held_out(file: Path) -> HeldOut:
    """Returns the splits in a JSON file with `held_out_sources`; raises UserError if it is not such a file."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {split: Counter(int(source, 16) for source in sources) for split, sources in stored.items()}
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
    held_out = same or _choose_held_out(hashes, missing)
    remaining = sum(held_out.values(), Counter[int]())
    with ExitStack() as stack:
        writers = {name: stack.enter_context(SplitWriter(folder, name)) for name in ("train", *held_out)}
        for begin, (sources, targets) in zip(itertools.count(0, CHUNK), undivided.blocks(), strict=False):
            split_numbers = np.zeros(len(sources), np.uint8)  # 0 is train
            for number, chosen in enumerate(held_out.values(), start=1):
                places = np.flatnonzero(np.isin(hashes[begin : begin + CHUNK], np.array([*chosen], np.uint64)))
                for place, source in zip(places.tolist(), hashes[begin + places].tolist(), strict=True):
                    split_numbers[place] = number if remaining[source] > 0 else _LEFT_OUT
                    remaining[source] -= 1
            for number, writer in enumerate(writers.values()):
                is_here = (split_numbers == number).tolist()
                writer.write_encoded(*(list(itertools.compress(side, is_here)) for side in (sources, targets)))
    for path in folder.glob(f"{_UNDIVIDED}.*"):
        path.unlink()
    then = " and ".join(f"{sources.total():,}" for sources in same.values())
    added = len(hashes) - sum(writer.count for writer in writers.values())
    sides = f"{then} pairs, here the targets" if by_target else f"{then} pairs"
    note = f"the sources of data.held_out ({sides}) are held out again; left out {added:,} pairs added to them"
    return writers, [note] if same else [], by_target


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
        wanted, found = np.array([*before.get(split, ())], np.uint64), set[int]()
        for begin in range(0, len(hashes), _COUNTED):
            found.update(np.intersect1d(hashes[begin : begin + _COUNTED], wanted).tolist())
        if not found or 2 * len(found) < len(wanted):
            return {}
    return {split: before[split] for split in splits}


def _choose_held_out(hashes: np.ndarray, splits: Sequence[str]) -> HeldOut:
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
