"""What training batches contain, and a planner whose batches are mixed from two corpora and sampled."""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from lingua_flax.data.augmented_pairs import AugmentedPairs
from lingua_flax.data.batch import Batch
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.packing import Planner
from lingua_flax.data.subword_sampling import samplers_of
from lingua_flax.data.tokenized_pairs import tokenize
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.data.training_batches import TrainingBatch, TrainingBatches
from lingua_flax.options.schema import AugmentConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID
from tests.helpers.pairs import PAIRS

Ids = tuple[int, ...]


def pairs_in(batch: Batch) -> list[tuple[Ids, Ids]]:
    """Returns (source ids, target ids) of every segment of every row, after checking the layout described in Batch."""
    pairs = []
    for row in range(len(batch.source)):
        segments = batch.source_segments[row], batch.target_segments[row]
        count = segments[0].max()
        assert set(segments[0]) - {0} == set(segments[1]) - {0} == set(range(1, count + 1))
        for segment in range(1, count + 1):
            on_source, on_target = segments[0] == segment, segments[1] == segment
            source, target = batch.source[row][on_source], batch.target_out[row][on_target]
            assert batch.source_positions[row][on_source].tolist() == list(range(len(source)))
            assert batch.target_positions[row][on_target].tolist() == list(range(len(target)))
            assert batch.target_in[row][on_target].tolist() == [BOS_ID, *target[:-1]]
            pairs.append((tuple(source.tolist()), tuple(target.tolist())))
    for ids, positions, where in (
        (batch.source, batch.source_positions, batch.source_segments),
        (batch.target_out, batch.target_positions, batch.target_segments),
        (batch.target_in, batch.target_positions, batch.target_segments),
    ):
        assert not ids[where == 0].any()
        assert not positions[where == 0].any()
        assert ids.dtype == positions.dtype == where.dtype == np.int32
    return pairs


def identical(one: TrainingBatch, other: TrainingBatch) -> bool:
    """Returns whether two batches are the same to the last bit."""
    return all(np.array_equal(a, b) for a, b in zip(one.rows, other.rows, strict=True)) and one[1:] == other[1:]


def sampled_mixture(folder: Path) -> Planner:
    """Returns a planner that draws from two corpora of 120 and 80 pairs, 2 to 1, in sampled segmentations."""
    short = [Pair(*(" ".join(side.split()[:3]) for side in pair)) for pair in PAIRS]  # so that sampling is fast
    augmented: list[AugmentedPairs] = []
    configs = TokenizerConfig(vocab_size=80), TokenizerConfig(vocab_size=80, kind="bpe")
    for text, config in zip((short[:120], short[80:]), configs, strict=True):
        tokenizer = parse_tokenizers(train_tokenizer(PAIRS, config))
        pairs = tokenize(text, f"{len(text)} pairs", tokenizer, folder)
        augmented.append(
            AugmentedPairs(pairs, text, ("en", "de"), tokenizer, 40, dict(AugmentConfig()), samplers_of(tokenizer, 0.2))
        )
    return Planner([each.pairs for each in augmented], (2.0, 1.0), row_length=40, seed=3, augmented=augmented)


def batches_digest(planner: Planner, state: Mapping[str, int], processes: int = 0) -> str:
    """Returns the SHA-256 of the five batches from a position on."""
    with closing(TrainingBatches(planner, rows=4, processes=processes)) as batches:
        batches.restore(dict(state))
        batches.start()
        return hashlib.sha256(b"".join(array.tobytes() for _ in range(5) for array in next(batches).rows)).hexdigest()
