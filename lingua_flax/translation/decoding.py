"""Compiled programs that decode or score a batch with one network, or with an ensemble by averaging probabilities.

B sentences, S padded source length, P padded prefix length, K beams or samples, L maximum target length, V vocabulary.
"""

from __future__ import annotations

import functools
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
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.search import (
    Constraints,
    Hypotheses,
    SearchConfig,
    StateGrowth,
    beam_search,
    greedy_search,
    sample,
)

EXTRA_INITIAL_POSITIONS = 4  # of the caches, beyond the source length; few translations need more
PREFIX_LENGTH_MULTIPLE = 8  # prefixes are padded to a multiple of this, so that fewer programs are compiled


class Network(NamedTuple):
    """A network's hashable structure (graphdef) and its parameters (params)."""

    graphdef: nnx.GraphDef
    params: Any


class DecodingRequest(NamedTuple):
    """A batch of sentences to translate.

    Attributes:
      source: padded token ids, [B, S].
      visible: int32 [B, S]; 0 at padding and at any other position that no layer may attend to.
      max_lengths, min_lengths, prefixes: as in Constraints, [B], [B] and [B, P].
      numbers: line number and part number of each sentence, int32 [B, 2]; they select its random numbers.
    """

    source: np.ndarray | jax.Array
    visible: np.ndarray | jax.Array
    max_lengths: np.ndarray | jax.Array
    min_lengths: np.ndarray | jax.Array
    prefixes: np.ndarray | jax.Array
    numbers: np.ndarray | jax.Array


def default_max_length(source_length: Any) -> Any:
    """Returns the default maximum number of target tokens for a source length (a number or an array)."""
    return 2 * source_length + 10


def padded_prefix_length(tokens: int) -> int:
    """Returns the padded length of prefixes of up to `tokens` tokens."""
    return -(-tokens // PREFIX_LENGTH_MULTIPLE) * PREFIX_LENGTH_MULTIPLE


class Program(NamedTuple):
    """What the program that decodes a batch depends on, besides the networks and the shapes of the request.

    Attributes:
      width: K, the number of beams or samples.
      length: L.
      keeps_full_batches: whether the batch stays together to the end, which computes more but compiles faster.
    """

    width: int
    length: int
    top_k: int | None = None
    top_p: float | None = None
    keeps_full_batches: bool = True


class Decoding(NamedTuple):
    """How a batch is decoded.

    Attributes:
      alpha: the length penalty.
      sampling: a seed and a temperature; None for a search.
    """

    program: Program
    num_hypotheses: np.int32
    alpha: np.float32
    sampling: tuple[np.uint32, np.float32] | None

    @classmethod
    def of(
        cls,
        options: DecodingOptions,
        request: DecodingRequest,
        max_length: int,
        num_hypotheses: int = 1,
        keeps_full_batches: bool = False,
    ) -> Decoding:
        """Returns how to decode a request with networks that accept `max_length` tokens."""
        default = default_max_length(request.source.shape[1]) + request.prefixes.shape[1]
        program = Program(
            width=num_hypotheses if options.temperature else options.beam_size,
            length=options.max_decoding_length or min(max(default, options.min_decoding_length), max_length),
            top_k=options.top_k,
            top_p=options.top_p,
            keeps_full_batches=keeps_full_batches,
        )
        sampling = (np.uint32(options.seed), np.float32(options.temperature)) if options.temperature else None
        return cls(program, np.int32(num_hypotheses), np.float32(options.length_penalty), sampling)


def decode_batch(networks: Sequence[Network], request: DecodingRequest, how: Decoding) -> Hypotheses:
    """Decodes a batch on the devices, with one network or with all networks of an ensemble.

    Returns the best hypotheses on the host: tokens [B, num_hypotheses, L] and scores [B, num_hypotheses].
    """
    program, arguments = compile_decode_batch(networks, request, how)
    hypotheses, count = gather_to_host(program(*arguments)), int(how.num_hypotheses)
    return Hypotheses(hypotheses.tokens[:, :count], hypotheses.scores[:, :count])


def compile_decode_batch(
    networks: Sequence[Network], request: DecodingRequest, how: Decoding
) -> tuple[jax.stages.Compiled, tuple[Any, ...]]:
    """Returns the program that `decode_batch` runs, and its arguments.

    To only compile the program, pass jax.ShapeDtypeStructs in place of the arrays.
    """
    graphdefs = tuple(network.graphdef for network in networks)
    arguments = [network.params for network in networks], request, how.sampling, how.num_hypotheses, how.alpha
    return compiled_program(search_or_sample, *arguments, graphdefs=graphdefs, program=how.program), arguments


@functools.partial(jax.jit, static_argnames=("graphdefs", "program"))
def search_or_sample(
    params: Sequence[Any],
    request: DecodingRequest,
    sampling: tuple[int, float] | None,
    num_hypotheses: jax.Array | int,
    alpha: jax.Array | float,
    *,
    graphdefs: tuple[nnx.GraphDef, ...],
    program: Program,
) -> Hypotheses:
    """Decodes a batch; the arguments are those of `Decoding`."""
    width, length, top_k, top_p, keeps_full_batches = program
    models = [nnx.merge(*network) for network in zip(graphdefs, params, strict=True)]
    initial_length = min(length, request.source.shape[1] + request.prefixes.shape[1] + EXTRA_INITIAL_POSITIONS)
    initial_length = length if keeps_full_batches else initial_length
    initial = [model.start_decoding(request.source, width, initial_length, request.visible) for model in models]

    def step(tokens: jax.Array, index: jax.Array, beam_history: jax.Array, states: Any) -> tuple[jax.Array, Any]:
        outputs = [
            model.decode_step(tokens, index, beam_history, *state) for model, state in zip(models, states, strict=True)
        ]
        logits = _average_probabilities([logits for logits, _ in outputs])
        new_states = [(memory, caches) for (memory, _), (_, caches) in zip(states, outputs, strict=True)]
        return mask_special_tokens(logits), new_states

    def grow(states: Any, length: int) -> Any:
        return [(memory, [cache.padded_to(length * width) for cache in caches]) for memory, caches in states]

    constraints = Constraints(*map(jnp.asarray, (request.max_lengths, request.min_lengths, request.prefixes)))
    growable = StateGrowth(initial_length, grow)
    task = SearchConfig(constraints, length, BOS_ID, EOS_ID, alpha, growable, not keeps_full_batches)
    if sampling:
        seed, temperature = sampling
        keys = _random_keys(seed, request.numbers, width)
        return sample(step, initial, task, keys=keys, temperature=temperature, top_k=top_k, top_p=top_p)
    if width == 1:
        return greedy_search(step, initial, task)
    return beam_search(step, initial, task, beams=width, num_hypotheses=num_hypotheses)


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


def score_batch(networks: Sequence[Network], batch: Batch) -> np.ndarray:
    """Returns the natural log-probability of each target given its source, end token included, [B]."""
    graphdefs = tuple(network.graphdef for network in networks)
    return gather_to_host(_score_batch([network.params for network in networks], batch, graphdefs=graphdefs))


@functools.partial(jax.jit, static_argnames="graphdefs")
def _score_batch(params: Sequence[Any], batch: Batch, *, graphdefs: tuple[nnx.GraphDef, ...]) -> jax.Array:
    models = [nnx.merge(*network) for network in zip(graphdefs, params, strict=True)]
    logits = _average_probabilities([model(batch.source, batch.target_in)[0] for model in models])
    targets = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(batch.target_out)[..., None], axis=-1)
    return jnp.sum(jnp.where(batch.target_out != PAD_ID, targets[..., 0], 0.0), axis=-1)
