"""Batches of sentence pairs, and those for evaluation: one padded pair per row, sorted by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID


class Batch(NamedTuple):
    """Sentence pairs in rows, one or several per row; each array is int32 [rows, length], padded with 0.

    A row of length 12 that holds the targets "a b c" and "d e", each followed by EOS (</s>; BOS is <s>):

        target_in         <s>  a  b    c  <s>  d     e  0 0 0 0 0
        target_out          a  b  c </s>    d  e  </s>  0 0 0 0 0
        target_segments     1  1  1    1    2  2     2  0 0 0 0 0
        target_positions    0  1  2    3    0  1     2  0 0 0 0 0

    The source is laid out like target_out. Pair k of a row is segment k on both sides.
    """

    source: np.ndarray
    source_segments: np.ndarray
    source_positions: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    target_segments: np.ndarray
    target_positions: np.ndarray

    @classmethod
    def zeros(cls, rows: int, length: int) -> Batch:
        """Returns a batch of padding only."""
        return cls._make(np.zeros((len(cls._fields), rows, length), np.int32))


def cut(ids: list[int], length: int) -> list[int]:
    """Returns the ids of a sentence; if there are more than `length`, the first `length - 1` of them and EOS_ID."""
    return ids if len(ids) <= length else [*ids[: length - 1], EOS_ID]


def pad_rows(sentences: Sequence[Sequence[int]], rows: int, length: int) -> np.ndarray:
    """Returns lists of ids as an int32 array [rows, length], padded with PAD_ID."""
    array = np.full((rows, length), PAD_ID, np.int32)
    for row, ids in zip(array, sentences, strict=False):
        row[: len(ids)] = ids
    return array


def unpacked_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], rows: int, length: int) -> Batch:
    """Returns a batch [rows, length] with one pair per row; rows without a pair are padding."""
    source, target_out = pad_rows(sources, rows, length), pad_rows(targets, rows, length)
    target_in = pad_rows([[BOS_ID, *ids[:-1]] for ids in targets], rows, length)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    return Batch(
        source=source,
        source_segments=(source != PAD_ID).astype(np.int32),
        source_positions=positions,
        target_in=target_in,
        target_out=target_out,
        target_segments=(target_out != PAD_ID).astype(np.int32),
        target_positions=positions,
    )


def bucket_lengths(max_length: int) -> list[int]:
    """Returns the padded lengths for evaluation, at most four: an eighth to all of max_length, rounded up."""
    return [-(-max_length // 2**k) for k in (3, 2, 1, 0)]


def length_batches(
    lengths: Sequence[int], rows: int, max_length: int, *, same_length: bool = False
) -> Iterator[tuple[list[int], int]]:
    """Yields all sentences, stably sorted by length, in groups of `rows`: their indices, and the padded length.

    No length may exceed `max_length`. With `same_length`, all groups have the padded length of the longest sentence.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for start in range(0, len(order), rows):
        group = order[start : start + rows]
        longest = lengths[(order if same_length else group)[-1]]
        yield group, next(length for length in bucket_lengths(max_length) if length >= longest)
