"""A small random network that translates, and what its forward passes say about translations."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from lingua_flax.data.batch import pad_rows
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.schema import ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.translation.translator import Translator
from tests.helpers.pairs import PAIRS

MAX_LENGTH = 40


@functools.cache
def random_translator() -> Translator:
    """Returns a translator whose translations are arbitrary, but not empty."""
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    sizes: dict[str, Any] = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "embed_dim": 32,
        "num_heads": 2,
        "mlp_dim": 48,
    }
    config = ModelConfig(**sizes, max_length=MAX_LENGTH, tied_embeddings="none")
    return Translator(structure(config, 60, 60).graphdef, random_params(config, seed=4), tokenizer, config)


def random_params(config: ModelConfig, seed: int) -> dict[str, Any]:
    """Returns parameters that spread the logits, so that rounding decides no ties."""
    params = initial_params(config, 60, 60, jax.random.key(seed))
    params["output_embedding"] *= 4.0
    return params


@functools.partial(jax.jit, static_argnames="graphdef")
def _forward_pass(params: Any, source: jax.Array, target_in: jax.Array, graphdef: nnx.GraphDef) -> jax.Array:
    return nnx.merge(graphdef, params)(source, target_in)[0]


def logits_after(translator: Translator, source: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Returns the logits of the token that follows each of these, from a forward pass without a cache."""
    rows = pad_rows([source], 1, MAX_LENGTH), pad_rows([tokens], 1, MAX_LENGTH)
    return np.array(_forward_pass(translator.params, *rows, translator.graphdef)[0, : len(tokens)], np.float64)


def log_probabilities(translator: Translator, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Returns the log-probability of every vocabulary entry at each position of a target, from a forward pass."""
    logits = logits_after(translator, source, [BOS_ID, *target[:-1]])
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
