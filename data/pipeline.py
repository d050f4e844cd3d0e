"""The training batches: a Grain pipeline of shuffled, packed rows whose position is a few bytes of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from configs.special_ids import BOS_ID, PAD_ID
from data.batch import Batch
from data.subwords import SampledPairs
from data.tokens import TokenizedPairs

# Rows filled side by side. Measured on Multi30k with rows of 64: 16 bins leave 9%, 64 bins 8%, 256 bins 7% padding;
# a restored iterator packs at most so many rows again.
PACKING_BINS = 256
PREFETCHED_BATCHES = 2
SEED_STRIDE = 0x9E3779B1  # epoch e of a corpus is shuffled by seed + e: those of another one must be far away

OneCorpus = TokenizedPairs | SampledPairs


@dataclass(frozen=True)
class MixedPairs:
    """Training pairs of several corpora, drawn in turn so that each has its share, whatever its size.

    Each corpus is shuffled and repeated by itself. Shares are proportional to the weights, which Grain rounds down to
    whole percents of the smallest one.
    """

    corpora: Sequence[OneCorpus]
    weights: Sequence[float]

    def __len__(self) -> int:
        """All pairs there are, which is the length of an epoch: of some pairs it has several, of others not all."""
        return sum(map(len, self.corpora))


TrainingPairs = OneCorpus | MixedPairs


class TrainingBatches(Iterator[Batch]):
    """Endless training batches [rows, row_length], a function of (pairs, seed); each epoch is shuffled anew.

    `state()` taken between two batches and given to `restore()`, in this or another process, gives the same batches
    from there on.
    """

    def __init__(self, pairs: TrainingPairs, rows: int, row_length: int, seed: int):
        """Args: pairs: those that fit into row_length on both sides, at least one."""
        dataset = _packed_rows(_endless(pairs, seed), row_length, seed).batch(rows, drop_remainder=True)
        self._iterator = grain.experimental.ThreadPrefetchIterDataset(
            dataset, prefetch_buffer_size=PREFETCHED_BATCHES
        ).__iter__()

    def __next__(self) -> Batch:
        return _to_batch(next(self._iterator))

    def state(self) -> dict[str, Any]:
        """The position behind the last batch, JSON-serializable."""
        return self._iterator.get_state()

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position given by `state`."""
        self._iterator.set_state(state)

    def close(self) -> None:
        """Stops the prefetching thread."""
        self._iterator.close()


def _to_batch(packed: dict[str, np.ndarray]) -> Batch:
    target_out, positions = packed["target"], packed["target_positions"]
    segments = packed["target_segment_ids"]
    target_in = np.roll(target_out, 1, axis=1)
    target_in[(positions == 0) & (segments > 0)] = BOS_ID
    target_in[segments == 0] = PAD_ID
    return Batch(
        source=packed["source"],
        source_segments=packed["source_segment_ids"],
        source_positions=packed["source_positions"],
        target_in=target_in,
        target_out=target_out,
        target_segments=segments,
        target_positions=positions,
    )


def rows_per_epoch(pairs: TrainingPairs, row_length: int, seed: int) -> int:
    """Rows that one pass over the pairs fills, counted by packing the first pass."""
    return sum(1 for _ in _packed_rows(_endless(pairs, seed)[: len(pairs)], row_length, seed))


def _endless(pairs: TrainingPairs, seed: int) -> grain.MapDataset:
    """The ids of shuffled pairs, {"source": ..., "target": ...}, epoch after epoch."""
    if isinstance(pairs, MixedPairs):
        corpora = [
            _endless(corpus, (seed + number * SEED_STRIDE) % 2**32) for number, corpus in enumerate(pairs.corpora)
        ]
        return grain.MapDataset.mix(corpora, pairs.weights)
    dataset = grain.MapDataset.range(len(pairs))
    if isinstance(pairs, SampledPairs):  # before the shuffle: numbers are then drawn by seed, epoch and pair
        dataset = dataset.random_map(pairs.draw, seed=seed)
    else:
        dataset = dataset.map(pairs.__getitem__)
    return dataset.shuffle(seed=seed).repeat().map(lambda pair: dict(zip(("source", "target"), pair, strict=True)))


def _packed_rows(pairs: grain.MapDataset, row_length: int, seed: int) -> grain.IterDataset:
    """Packed rows. Reading is cheap, so no threads of its own."""
    return grain.experimental.FirstFitPackIterDataset(
        pairs.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)),
        length_struct={"source": row_length, "target": row_length},
        num_packing_bins=PACKING_BINS,
        seed=seed,
        shuffle_bins=True,
    )
