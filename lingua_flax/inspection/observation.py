"""What the network computes while it writes a given translation: probabilities, alternatives and attention.

S source tokens, T target tokens, N heads.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import bucket_lengths, pad_rows
from lingua_flax.data.placeholders import Protected
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.devices.sharding import put_on_devices, replicated
from lingua_flax.host.errors import UserError
from lingua_flax.model.layers import AttentionSublayer
from lingua_flax.model.transformer import AttentionSublayers
from lingua_flax.options.special_ids import BOS_ID, PAD_ID
from lingua_flax.translation.decoding import mask_special_tokens
from lingua_flax.translation.translator import Translator

NUM_ALTERNATIVES = 10


class Prediction(NamedTuple):
    """A token of the translation, its probability given those before it, and the likeliest in its place with theirs."""

    token: int
    probability: float
    alternatives: list[tuple[int, float]]
    logits: list[float]  # of the alternatives


class Observation(NamedTuple):
    """One forward pass over a sentence and its translation, with float32 attention weights [layers, N, queries, keys].

    At position t the decoder has read <s> and the target tokens before t, and predicts target token t.
    """

    source: list[int]
    target: list[Prediction]
    encoder: np.ndarray
    decoder: np.ndarray  # the keys are the tokens that are read
    cross: np.ndarray
    sublayers: AttentionSublayers  # with padding, as the next one
    hidden: np.ndarray  # the decoder's output, [1, padded, D]


def source_tokens(translator: Translator, line: Protected) -> list[int]:
    """Returns the line's token ids; raises UserError if it is empty or longer than the network can see in one pass."""
    (ids,) = translator.tokenizer.encode_protected([line])
    if len(ids) < 2:
        raise UserError("an attention map needs a sentence, but the line is empty")
    if len(ids) > translator.max_length:
        raise UserError(
            f"an attention map shows one pass of the network: the line has {len(ids) - 1} tokens, "
            f"and the model sees at most {translator.max_length - 1} plus the end token; shorten the line"
        )
    return ids


def padded_length(translator: Translator, tokens: int) -> int:
    """Returns the length to which this number of tokens is padded, so that few programs are compiled."""
    return next(length for length in bucket_lengths(translator.max_length) if length >= tokens)


def observe(
    translator: Translator, source: Sequence[int], target: Sequence[int], masked: Sequence[int] = ()
) -> Observation:
    """Returns what the network computes while it writes a translation, if no layer attends to `masked` positions."""
    s, t = len(source), len(target)
    length = padded_length(translator, max(s, t))
    padded = [pad_rows([ids], 1, length) for ids in (source, [BOS_ID, *target[:-1]], target)]
    visible = (padded[0] != PAD_ID).astype(np.int32)
    visible[0, list(masked)] = 0
    predicted, sublayers, hidden = run_program(_forward, translator, visible, *padded)
    predictions = [
        Prediction(token, float(own), list(zip(ids.tolist(), best.tolist(), strict=True)), logits.tolist())
        for token, own, ids, best, logits in zip(target, *predicted, strict=False)  # padding follows
    ]
    encoder = _weights(sublayers.encoder, s, s)
    encoder[:, :, list(masked)] = 0.0  # nothing reads what these positions compute
    decoder, cross = _weights(sublayers.decoder, t, t), _weights(sublayers.cross, t, s)
    return Observation(list(source), predictions, encoder, decoder, cross, sublayers, hidden)


def run_program(program: Callable[..., Any], translator: Translator, *inputs: np.ndarray | np.generic) -> Any:
    """Runs a compiled program with the network and host arrays, replicated on all devices; returns host arrays."""
    arrays = put_on_devices(inputs, replicated(translator.mesh))
    return gather_to_host(program(translator.params, *arrays, graphdef=translator.graphdef))


@functools.partial(jax.jit, static_argnames="graphdef")
def _forward(
    params: Any, visible: jax.Array, source: jax.Array, read: jax.Array, written: jax.Array, *, graphdef: nnx.GraphDef
) -> tuple[tuple[jax.Array, ...], AttentionSublayers, jax.Array]:
    """Returns what is predicted, what all attentions compute, and the decoder's output.

    Predicted are the probabilities of the tokens written [T], and ids, probabilities and logits of the likeliest.
    """
    model = nnx.merge(graphdef, params)
    hidden, sublayers = model.hidden_states(source, read, source_segments=visible)
    logits = mask_special_tokens(model.logits(hidden))[0]
    probabilities = jax.nn.softmax(logits)
    chosen = jnp.take_along_axis(probabilities, written[0, :, None], axis=-1)[:, 0]
    best, tokens = jax.lax.top_k(probabilities, min(NUM_ALTERNATIVES, probabilities.shape[-1]))
    return (chosen, tokens, best, jnp.take_along_axis(logits, tokens, axis=-1)), sublayers, hidden


def _weights(stack: Sequence[AttentionSublayer], queries: int, keys: int) -> np.ndarray:
    """Returns the weights of each layer without padding, [layers, N, queries, keys]."""
    return np.stack([np.asarray(sublayer.attention.weights)[0, :, :queries, :keys] for sublayer in stack])
