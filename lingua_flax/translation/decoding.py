"""Compiled programs that decode or score a batch with one network, or with an ensemble by averaging probabilities.

B sentences, S padded source length, P padded prefix length, K beams or samples, L maximum target length, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import Batch
from lingua_flax.devices.compilation import compiled_program
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.model.kv_cache import KVCache
from lingua_flax.model.transformer import EncodedSource, Transformer
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation import search

EXTRA_INITIAL_POSITIONS = 4  # of the caches, beyond the source length; few translations need more


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Network:
    """A network as an argument of a compiled program, which depends on its structure, but not on its parameters."""

    graphdef: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    params: Any


class DecodingRequest(NamedTuple):
    """A batch of sentences to translate, as int32 arrays; `max_lengths` to `prefixes` are as in Constraints."""

    source: np.ndarray | jax.Array  # padded token ids, [B, S]
    visible: np.ndarray | jax.Array  # [B, S]; 0 at padding and at any other position that no layer may attend to
    max_lengths: np.ndarray | jax.Array
    min_lengths: np.ndarray | jax.Array
    prefixes: np.ndarray | jax.Array
    numbers: np.ndarray | jax.Array  # line number and part number, [B, 2], which select the random numbers


def default_max_length(source_length: Any) -> Any:
    """Returns the default maximum number of target tokens for a source length (a number or an array)."""
    return 2 * source_length + 10


def length_limit(source_tokens: int, prefix_tokens: int, options: DecodingOptions, max_length: int) -> int:
    """Returns the maximum number of tokens of a translation, its prefix and end token included."""
    limit = max(default_max_length(source_tokens) + prefix_tokens, options.min_decoding_length)
    return options.max_decoding_length or min(limit, max_length)


class Program(NamedTuple):
    """What the program that decodes a batch depends on, besides the networks and the shapes of the request."""

    width: int  # K, the number of beams or samples
    length: int  # L
    top_k: int | None = None
    top_p: float | None = None
    keeps_full_batches: bool = True  # the batch stays together to the end: more to compute, less to compile


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """How a batch is decoded."""

    program: Program = dataclasses.field(metadata={"static": True})
    sampling: Any  # a seed, uint32, and a temperature, float32; None for a search
    num_hypotheses: Any  # int32
    alpha: Any  # the exponent of the length penalty, float32


def decoding_of(
    options: DecodingOptions, request: DecodingRequest, max_length: int, num_hypotheses: int, keeps_full_batches: bool
) -> Decoding:
    """Returns how to decode a request with networks that accept `max_length` tokens."""
    width = num_hypotheses if options.temperature else options.beam_size
    length = length_limit(request.source.shape[1], request.prefixes.shape[1], options, max_length)
    program = Program(width, length, options.top_k, options.top_p, keeps_full_batches)
    sampling = (np.uint32(options.seed), np.float32(options.temperature)) if options.temperature else None
    return Decoding(program, sampling, np.int32(num_hypotheses), np.float32(options.length_penalty))


def decode_batch(networks: Sequence[Network], request: DecodingRequest, how: Decoding) -> search.Hypotheses:
    """Decodes a batch on the devices; returns the `num_hypotheses` best hypotheses of each sentence on the host."""
    program = compiled_program(search_or_sample, networks, request, how)
    hypotheses, count = gather_to_host(program(networks, request, how)), int(how.num_hypotheses)
    return search.Hypotheses(hypotheses.tokens[:, :count], hypotheses.scores[:, :count])


@jax.jit
def search_or_sample(networks: Sequence[Network], request: DecodingRequest, how: Decoding) -> search.Hypotheses:
    """Decodes a batch; returns as many hypotheses as there are beams or samples."""
    return search_from(networks, *initial(networks, request, how), how, request.numbers).run()


def initial_room(request: DecodingRequest, program: Program) -> int:
    """Returns the number of positions that the state of a search has room for at first."""
    sufficient = request.source.shape[1] + request.prefixes.shape[1] + EXTRA_INITIAL_POSITIONS
    return program.length if program.keeps_full_batches else min(program.length, sufficient)


def initial(
    networks: Sequence[Network], request: DecodingRequest, how: Decoding
) -> tuple[search.Constraints, list[tuple[EncodedSource, list[KVCache]]]]:
    """Returns the constraints of a search and its state: of each network, the encoded sources and empty caches."""
    source, visible, *constraints = map(jnp.asarray, request[:5])
    width, room = how.program.width, initial_room(request, how.program)
    states = [model.start_decoding(source, width, room, visible) for model in _merged(networks)]
    return search.Constraints(*constraints), states


def search_from(
    networks: Sequence[Network], constraints: search.Constraints, state: Any, how: Decoding, numbers: Any = None
) -> search.Search:
    """Returns the search from a state on, or the sampling, which needs the `numbers` of the request."""
    width, length, top_k, top_p, keeps_full_batches = how.program
    models = _merged(networks)

    def step(tokens: jax.Array, index: jax.Array, beam_history: jax.Array, states: Any) -> tuple[jax.Array, Any]:
        outputs = [
            model.decode_step(tokens, index, beam_history, *state) for model, state in zip(models, states, strict=True)
        ]
        logits = _average_probabilities([logits for logits, _ in outputs])
        new_states = [(source, caches) for (source, _), (_, caches) in zip(states, outputs, strict=True)]
        return mask_special_tokens(logits), new_states

    def grow(states: Any, length: int) -> Any:
        return [(source, [cache.padded_to(length * width) for cache in caches]) for source, caches in states]

    ((_, (cache, *_)), *_) = state
    room = cache.values.shape[2] // width
    task = search.SearchTask(constraints, length, BOS_ID, EOS_ID, how.alpha, room, grow, not keeps_full_batches)
    if how.sampling:
        seed, temperature = how.sampling
        keys = _random_keys(seed, numbers, width)
        return search.sample(step, state, task, keys=keys, temperature=temperature, top_k=top_k, top_p=top_p)
    if width == 1:
        return search.greedy_search(step, state, task)
    return search.beam_search(step, state, task, beams=width, num_hypotheses=how.num_hypotheses)


def _merged(networks: Sequence[Network]) -> list[Transformer]:
    return [nnx.merge(network.graphdef, network.params).with_converted_matrices() for network in networks]


def mask_special_tokens(logits: jax.Array) -> jax.Array:
    """Sets the logits [B, K, V] of padding, start and unknown to minus infinity.

    Only the first few columns are rewritten; a mask over the whole vocabulary would be a pass over all logits.
    """
    special_ids = jnp.array([PAD_ID, BOS_ID, UNK_ID])
    columns = logits[..., : int(max(PAD_ID, BOS_ID, UNK_ID)) + 1]
    columns = jnp.where(jnp.isin(jnp.arange(columns.shape[-1]), special_ids), -jnp.inf, columns)
    return jax.lax.dynamic_update_slice_in_dim(logits, columns, 0, axis=-1)


def _average_probabilities(logits: Sequence[jax.Array]) -> jax.Array:
    """Returns logits of the networks' mean probabilities; the logits of a single network are returned unchanged."""
    if len(logits) == 1:
        return logits[0]
    return jax.nn.logsumexp(jax.nn.log_softmax(jnp.stack(logits)), axis=0) - math.log(len(logits))


def _random_keys(seed: jax.Array | int, numbers: jax.Array | np.ndarray, samples: int) -> jax.Array:
    """Returns keys [B, K], each a function of the seed, the sentence's numbers and the sample's index."""

    def key(number: jax.Array, sample_index: jax.Array) -> jax.Array:
        part_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number[0]), number[1])
        return jax.random.fold_in(part_key, sample_index)

    return jax.vmap(jax.vmap(key, (None, 0)), (0, None))(jnp.asarray(numbers), jnp.arange(samples))


@jax.jit
def score_batch(networks: Sequence[Network], batch: Batch) -> jax.Array:
    """Returns the natural log-probability of each target given its source, end token included, [B].

    As in a search, it is that among the tokens that a translation can have, or unknown where the target has one.
    """
    models = [nnx.merge(network.graphdef, network.params) for network in networks]
    logits = _average_probabilities([model(batch.source, batch.target_in)[0] for model in models])
    unknown = jnp.where(batch.target_out == UNK_ID, logits[..., UNK_ID], -jnp.inf)
    logits = mask_special_tokens(logits).at[..., UNK_ID].set(unknown)
    targets = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(batch.target_out)[..., None], axis=-1)
    return jnp.sum(jnp.where(batch.target_out != PAD_ID, targets[..., 0], 0.0), axis=-1)
