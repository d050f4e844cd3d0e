"""Builds batches: planned rows of packed pairs for training, one padded pair per row for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID

if TYPE_CHECKING:  # translation imports this module and does not need packing
    from lingua_flax.data.packing import Side, Window

FlatIds = tuple[np.ndarray, np.ndarray]  # the concatenated source ids and the concatenated target ids of a corpus


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


def gather(
    batch: Batch, batch_rows: np.ndarray, window: Window, window_rows: np.ndarray, corpora: Sequence[FlatIds]
) -> None:
    """Copies rows of a window, from the flat ids of its corpora, into rows of a batch that are zero until then."""
    counts = window.row_starts[window_rows + 1] - window.row_starts[window_rows]
    pairs = np.arange(counts.sum()) + np.repeat(window.row_starts[window_rows] - (np.cumsum(counts) - counts), counts)
    row_offsets = np.repeat(batch_rows * batch.source.shape[1], counts)  # of each pair's row in the flattened batch
    for number, (source_ids, target_ids) in enumerate(corpora):
        selected = slice(None) if len(corpora) == 1 else window.corpora[pairs] == number
        placement = pairs[selected], row_offsets[selected]
        indices, tokens, positions, segments = _lay_out(source_ids, window.source, window.segments, *placement)
        batch.source.reshape(-1)[indices] = tokens
        batch.source_positions.reshape(-1)[indices] = positions
        batch.source_segments.reshape(-1)[indices] = segments
        indices, tokens, positions, segments = _lay_out(target_ids, window.target, window.segments, *placement)
        batch.target_out.reshape(-1)[indices] = tokens
        batch.target_positions.reshape(-1)[indices] = positions
        batch.target_segments.reshape(-1)[indices] = segments
        shifted = np.roll(tokens, 1)
        shifted[positions == 0] = BOS_ID
        batch.target_in.reshape(-1)[indices] = shifted


def _lay_out(
    ids: np.ndarray, side: Side, segments: np.ndarray, pairs: np.ndarray, row_offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the concatenated tokens of one side of the given pairs: the index of each token in the flattened batch,
    its id, its position in its sentence and its segment, [tokens] each."""
    lengths = side.lengths[pairs]
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    indices = positions + np.repeat(row_offsets + side.columns[pairs], lengths)
    tokens = ids[positions + np.repeat(side.starts[pairs], lengths)]
    return indices, tokens, positions, np.repeat(segments[pairs], lengths)


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
