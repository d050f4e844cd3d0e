"""Where a batch is made: packed rows gathered by a plan for training, one padded pair a row for evaluation.

B batch, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from options.special_ids import BOS_ID, EOS_ID, PAD_ID

if TYPE_CHECKING:  # what translates has nothing to pack
    from data.packing import Side, Window

FlatIds = tuple[np.ndarray, np.ndarray]  # of all source sentences of a corpus, one after the other, and of all targets


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

    @classmethod
    def zeros(cls, rows: int, length: int) -> Batch:
        """A batch without a token."""
        return cls._make(np.zeros((len(cls._fields), rows, length), np.int32))


def gather(batch: Batch, places: np.ndarray, window: Window, rows: np.ndarray, corpora: Sequence[FlatIds]) -> None:
    """Fills rows of a batch of zeros with rows of a window, all at once: there is no loop over pairs.

    Args:
      places: [n], the rows of the batch to fill.
      rows: [n], the rows of the window to fill them with.
      corpora: the ids that the window's sentences are parts of, by the number of their corpus.
    """
    counts = window.row_starts[rows + 1] - window.row_starts[rows]
    pairs = np.arange(counts.sum()) + np.repeat(window.row_starts[rows] - (np.cumsum(counts) - counts), counts)
    begins = np.repeat(places * batch.source.shape[1], counts)  # of each pair's row among the flat positions
    for number, (source_ids, target_ids) in enumerate(corpora):
        own = slice(None) if len(corpora) == 1 else window.corpora[pairs] == number
        of_pairs = pairs[own], begins[own]
        put, tokens, positions, segments = _laid_out(source_ids, window.source, window.segments, *of_pairs)
        batch.source.reshape(-1)[put] = tokens
        batch.source_positions.reshape(-1)[put] = positions
        batch.source_segments.reshape(-1)[put] = segments
        put, tokens, positions, segments = _laid_out(target_ids, window.target, window.segments, *of_pairs)
        batch.target_out.reshape(-1)[put] = tokens
        batch.target_positions.reshape(-1)[put] = positions
        batch.target_segments.reshape(-1)[put] = segments
        shifted = np.roll(tokens, 1)
        shifted[positions == 0] = BOS_ID
        batch.target_in.reshape(-1)[put] = shifted


def _laid_out(
    ids: np.ndarray, side: Side, segments: np.ndarray, pairs: np.ndarray, begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of one side of some pairs, one after the other: where each goes among the flat positions of a batch,
    its id, its position in its sentence and its segment, [tokens] each."""
    lengths = side.lengths[pairs]
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    put = positions + np.repeat(begins + side.columns[pairs], lengths)
    tokens = ids[positions + np.repeat(side.starts[pairs], lengths)]
    return put, tokens, positions, np.repeat(segments[pairs], lengths)


def cut(ids: list[int], length: int) -> list[int]:
    """A sentence's ids, or where there are more than `length` of them, the first ones and EOS_ID."""
    return ids if len(ids) <= length else [*ids[: length - 1], EOS_ID]


def pad_rows(sentences: Sequence[Sequence[int]], rows: int, length: int) -> np.ndarray:
    """Lists of ids -> [rows, length] int32, PAD_ID where there is nothing."""
    array = np.full((rows, length), PAD_ID, np.int32)
    for row, ids in zip(array, sentences, strict=False):
        row[: len(ids)] = ids
    return array


def unpacked_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], rows: int, length: int) -> Batch:
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


def length_batches(
    lengths: Sequence[int], rows: int, max_length: int, *, same_length: bool = False
) -> Iterator[tuple[list[int], int]]:
    """Sentences sorted by length in groups of `rows`: (their indices, the padded length). Nothing is dropped.

    The caller puts results back in order by the indices. Ties keep their order.

    Args:
      same_length: whether all groups are padded to that of the longest sentence.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for start in range(0, len(order), rows):
        group = order[start : start + rows]
        longest = lengths[(order if same_length else group)[-1]]
        yield group, next(length for length in bucket_lengths(max_length) if length >= longest)
