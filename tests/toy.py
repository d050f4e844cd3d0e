"""A corpus of a few hundred pairs that a model with a few thousand parameters learns: numbers in words, reversed."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingua_flax.data.ragged_arrays import RaggedArray
from lingua_flax.data.tokenized_pairs import TokenizedPairs

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
FRENCH = ["zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"]

# For this corpus and that of tests/ted.py, whose batches have the same shape.
NETWORK = """
[tokenizer]
vocab_size = 45

[model]
num_encoder_layers = 1
num_decoder_layers = 1
embed_dim = 32
num_heads = 2
mlp_dim = 64
max_length = 32
dropout_rate = 0.05
"""

CONFIG = (
    """
[data]
name = "text"
train_source = "{folder}/train.en"
train_target = "{folder}/train.fr"
validation_source = "{folder}/validation.en"
validation_target = "{folder}/validation.fr"
test_source = "{folder}/test.en"
test_target = "{folder}/test.fr"
row_length = 32
"""
    + NETWORK
    + """
[optimizer]
peak_lr = 1e-2
warmup_steps = 30

[training]
num_steps = 240
tokens_per_batch = 512
log_every = 10
eval_every = 80
checkpoint_every = 40
"""
)


def write_corpus(folder: Path) -> Path:
    """Writes the corpus and its config into the folder. Returns the path of the config."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for split, count in (("train", 700), ("validation", 31), ("test", 37)):
        pairs = [[draw.randrange(10) for _ in range(draw.randint(1, 5))] for _ in range(count)]
        write_pairs(folder, split, pairs)
    config = folder / "toy.toml"
    config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    return config


def write_pairs(folder: Path, name: str, pairs: Sequence[Sequence[int]]) -> None:
    """Writes numbers in words to two text files, those of the French side in the reverse order."""
    sources = "".join(f"{' '.join(ENGLISH[n] for n in pair)}.\n" for pair in pairs)
    targets = "".join(f"{' '.join(FRENCH[n] for n in reversed(pair))} !\n" for pair in pairs)
    (folder / f"{name}.en").write_text(sources, encoding="utf-8")
    (folder / f"{name}.fr").write_text(targets, encoding="utf-8")


def tokenized(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> TokenizedPairs:
    """Returns pairs with the given ids, in memory."""
    source, target = (
        RaggedArray(
            np.array(list(itertools.chain.from_iterable(side)), np.uint16), np.cumsum([len(ids) for ids in side])
        )
        for side in (sources, targets)
    )
    return TokenizedPairs(source, target)
