"""Small networks with random parameters, and what they compute, for comparisons with something else."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import pad_rows
from lingua_flax.data.known_words import known_words
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.translator import Translator
from tests.helpers.pairs import PAIRS

LINES = ["the cat eats fish .", "a dog sleeps", "where is it?", "milk"]
TRANSLATIONS = ["le chat mange du poisson .", "un chien", "dort où ?", "lait"]
LINE = "the old village sleeps near the water"
SIZES = {"embed_dim": 16, "num_heads": 2, "mlp_dim": 24, "max_length": 64}
SMALL = SIZES | {"num_encoder_layers": 2, "num_decoder_layers": 1, "dropout_rate": 0.0}


@functools.cache
def small_tokenizer(tags: tuple[str, ...] = (), **options: Any) -> Tokenizer:
    """Returns tokenizers of a few pairs, and the words that these have."""
    models = train_tokenizer(PAIRS, TokenizerConfig(**{"vocab_size": 50, **options}), list(tags))
    return dataclasses.replace(parse_tokenizers(models), words=known_words(source for source, _ in PAIRS))


def random_translator(joint: bool = True, **options: Any) -> Translator:
    """Returns a translator from English into French with random parameters, norms included."""
    config = ModelConfig(**{**SMALL, **options})
    tokenizer = small_tokenizer(joint=joint)
    network = structure(config, tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.float32(0.3 * draw.normal(size=leaf.shape)), network.params)
    return Translator(network.graphdef, params, tokenizer, config, languages=("en", "fr"))


def encoded(translator: Translator) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the ids of LINES and of TRANSLATIONS."""
    return translator.tokenizer.encode_source(LINES), translator.tokenizer.encode_target(TRANSLATIONS)


def forward_pass(translator: Translator, source: Any, read: Any) -> np.ndarray:
    """Returns the logits for rows of source ids and of the target ids that are read."""
    return np.asarray(_logits(translator.params, np.asarray(source), np.asarray(read), translator.graphdef))


@functools.partial(jax.jit, static_argnames="graphdef")
def _logits(params: Any, source: jax.Array, read: jax.Array, graphdef: Any) -> jax.Array:
    return nnx.merge(graphdef, params)(source, read)[0]


def log_probabilities(translator: Translator) -> list[float]:
    """Returns the log-probability of each of TRANSLATIONS that the network computes."""
    sources, targets = encoded(translator)
    inputs = [[BOS_ID, *target[:-1]] for target in targets]
    logits = forward_pass(translator, *(pad_rows(ids, len(ids), max(map(len, ids))) for ids in (sources, inputs)))
    return [log_probability_of(row[: len(target)], target) for row, target in zip(logits, targets, strict=True)]


def log_probability_of(logits: Any, target: Sequence[int]) -> float:
    """Returns the log-probability of a target among those without padding, start and unknown."""
    odds = np.exp(np.float64(logits))
    odds[:, [PAD_ID, BOS_ID, UNK_ID]] = 0.0
    return np.log(odds[range(len(target)), target] / odds.sum(axis=-1)).sum()
