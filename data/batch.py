"""What a batch is: a NamedTuple of int32 arrays, and the unpacked batches of evaluation.

B batch, S source length, T target length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from configs.special_ids import BOS_ID, EOS_ID, PAD_ID


class Batch(NamedTuple):
    """Several sentence pairs packed into each row.

    A row of length 12 that holds the targets "a b c" and "d e" (after each, EOS as </s>; BOS is <s>):

        target_in         <s>  a  b    c  <s>  d     e  0 0 0 0 0
        target_out          a  b  c </s>    d  e  </s>  0 0 0 0 0
        target_segments     1  1  1    1    2  2     2  0 0 0 0 0
        target_positions    0  1  2    3    0  1     2  0 0 0 0 0

    The source is laid out like target_out; pair k of a row has segment k on both sides.
    """

    source: np.ndarray
    source_segments: np.ndarray
    source_positions: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    target_segments: np.ndarray
    target_positions: np.ndarray

    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of all arrays."""
        digest = hashlib.sha256()
        for array in self:
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]


def cut(ids: list[int], length: int) -> list[int]:
    """A sentence's ids, or where there are more than `length` of them, the first ones and EOS_ID."""
    return ids if len(ids) <= length else [*ids[: length - 1], EOS_ID]


def pad_rows(sentences: Sequence[Sequence[int]], rows: int, length: int) -> np.ndarray:
    """Lists of ids -> [rows, length] int32, PAD_ID where there is nothing."""
    array = np.full((rows, length), PAD_ID, np.int32)
    for row, ids in zip(array, sentences, strict=False):
        row[: len(ids)] = ids
    return array


def unpacked(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], rows: int, length: int) -> Batch:
    """One pair a row, [rows, length] on both sides; a missing row is padding throughout."""
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
    """At most four padded lengths, each twice the one before: so many programs are compiled for evaluation."""
    return [-(-max_length // 2**k) for k in (3, 2, 1, 0)]


def length_batches(lengths: Sequence[int], rows: int, max_length: int) -> Iterator[tuple[list[int], int]]:
    """Sentences sorted by length in groups of `rows`: (their indices, the padded length). Nothing is dropped.

    The caller puts results back in order by the indices. Ties keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for start in range(0, len(order), rows):
        group = order[start : start + rows]
        longest = lengths[group[-1]]
        yield group, next(length for length in bucket_lengths(max_length) if length >= longest)
