"""Tokenized pairs on disk: made once for a corpus, a split and a tokenizer, then mapped into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.corpora import storage
from data.corpora.corpus import PairSource
from data.lines import chunks
from data.tokenizer import Tokenizer

CHUNK = 4096  # pairs tokenized at a time
COUNTED = 1 << 18  # pairs whose tokens are counted at a time
NONE = np.array([], np.int64)
FORMAT = "1"  # part of the cache key


class TokenizedPairs:
    """Random access to pairs of id arrays (int32, ended by EOS_ID)."""

    def __init__(self, ids: Sequence[np.ndarray], ends: Sequence[np.ndarray], left_out: np.ndarray = NONE):
        """Args: ids, ends: for each side all ids in a row and where each sentence ends; left_out: the pairs not in
        view, in ascending order. Only these take memory."""
        self._ids = ids
        self._ends = ends
        self._left_out = left_out
        self._in_view_before = left_out - np.arange(len(left_out))  # how many pairs, for each that is left out

    def __len__(self) -> int:
        return len(self._ends[0]) - len(self._left_out)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        pair = self.position(index)
        source, target = (
            ids[(ends[pair - 1] if pair else 0) : ends[pair]].astype(np.int32)
            for ids, ends in zip(self._ids, self._ends, strict=True)
        )
        return source, target

    def position(self, index: int) -> int:
        """Which pair of the split a pair in view is."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return int(index + np.searchsorted(self._in_view_before, index, side="right"))

    def no_longer_than(self, length: int) -> TokenizedPairs:
        """The pairs of which neither side has more than `length` tokens."""
        too_long = [self._left_out]
        for begin in range(0, len(self._ends[0]), COUNTED):
            source, target = (
                np.diff(ends[begin : begin + COUNTED], prepend=ends[begin - 1] if begin else 0) for ends in self._ends
            )
            too_long.append(begin + np.flatnonzero((source > length) | (target > length)))
        return TokenizedPairs(self._ids, self._ends, np.unique(np.concatenate(too_long)))


def tokenize(pairs: PairSource, fingerprint: str, split: str, tokenizer: Tokenizer, cache: Path) -> TokenizedPairs:
    """The tokenized pairs of a split; streams through them on first use, so that a corpus of any size fits.

    Args:
      pairs: (source, target) strings.
      fingerprint: that of the corpus they belong to; with the split and the tokenizer it keys the cache.
      cache: the folder of prepared corpora.
    """
    tag = [] if tokenizer.source_tag is None else [f"tag {tokenizer.source_tag}"]
    key = hashlib.sha256("\n".join([FORMAT, fingerprint, split, tokenizer.fingerprint, *tag]).encode()).hexdigest()
    sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    dtypes = ["<u2" if size <= 1 << 16 else "<i4" for size in sizes]
    directory = storage.prepare(cache, "tokens", key, lambda path: _write(path, pairs, tokenizer, dtypes))
    ids = [
        np.memmap(directory / f"{side}.ids", dtype, "r")
        for side, dtype in zip(("source", "target"), dtypes, strict=True)
    ]
    ends = [np.memmap(directory / f"{side}.ends", "<i8", "r") for side in ("source", "target")]
    return TokenizedPairs(ids, ends)


def _write(directory: Path, pairs: PairSource, tokenizer: Tokenizer, dtypes: Sequence[str]) -> None:
    with (
        open(directory / "source.ids", "wb") as source_ids,
        open(directory / "source.ends", "wb") as source_ends,
        open(directory / "target.ids", "wb") as target_ids,
        open(directory / "target.ends", "wb") as target_ends,
    ):
        source_end = target_end = 0
        for chunk in chunks(pairs, CHUNK):
            sources = tokenizer.encode_source([source for source, _ in chunk])
            targets = tokenizer.encode_target([target for _, target in chunk])
            source_end = _append(sources, source_end, source_ids, source_ends, dtypes[0])
            target_end = _append(targets, target_end, target_ids, target_ends, dtypes[1])


def _append(sentences: list[list[int]], end: int, ids_file: BinaryIO, ends_file: BinaryIO, dtype: str) -> int:
    ends = end + np.cumsum([len(ids) for ids in sentences])
    ends.astype("<i8").tofile(ends_file)
    np.array([i for ids in sentences for i in ids], dtype).tofile(ids_file)
    return int(ends[-1])
