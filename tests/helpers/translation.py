"""Small random networks that are sure of what they write, and what their forward passes say about translations."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.data.batch import pad_rows
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import ModelConfig
from lingua_flax.options.special_ids import BOS_ID
from lingua_flax.translation.translator import Translator
from tests.helpers.networks import forward_pass, small_tokenizer
from tests.helpers.parameters import random_params

MAX_LENGTH = 40
SMALL: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1, "embed_dim": 32, "num_heads": 2}
SMALL |= {"mlp_dim": 48, "max_length": MAX_LENGTH, "tied_embeddings": "none"}


@functools.cache
def decisive_translator(seed: int = 4, **options: Any) -> Translator:
    """Returns a network whose logits are spread, so that rounding decides no ties, and whose translations are long."""
    config = ModelConfig(**(SMALL | options))
    network = structure(config, 60, 60)
    params = jax.tree.map(jnp.asarray, random_params(network, seed))
    params["output_embedding"] *= 4.0
    return Translator(network.graphdef, params, small_tokenizer(vocab_size=60), config)


@pytest.fixture(scope="session")
def translator() -> Translator:
    """A network with distinct numbers of layers, heads and tokens, and learned positions."""
    return decisive_translator(seed=3, num_decoder_layers=2, embed_dim=24, num_heads=3, positions="learned")


def logits_after(translator: Translator, source: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Returns the logits of the token that follows each of these, from a forward pass without a cache."""
    rows = pad_rows([source], 1, MAX_LENGTH), pad_rows([tokens], 1, MAX_LENGTH)
    return forward_pass(translator, *rows)[0, : len(tokens)].astype(np.float64)


def log_probabilities(translator: Translator, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Returns the log-probability of every vocabulary entry at each position of a target, from a forward pass."""
    logits = logits_after(translator, source, [BOS_ID, *target[:-1]])
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
