"""Decoding on the device: one network, or several whose probabilities are averaged, searched or asked for scores.

B sentences, S padded source length, K beams or samples, V vocabulary.
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

from data.batch import Batch
from devices.compilation import compiled_program
from devices.processes import gather_to_host
from options.schema import DecodingOptions
from options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from translation.search import Constraints, GrowableState, Hypotheses, SearchTask, beam_search, greedy_search, sample

MORE_THAN_THE_SOURCE = 4  # tokens that a translation has room for at first; few are longer
PREFIX_ROOM = 8  # prefixes are padded to a multiple of it: so many fewer programs are compiled


class Network(NamedTuple):
    """graphdef: its structure, hashable; params: its parameters."""

    graphdef: nnx.GraphDef
    params: Any


class Request(NamedTuple):
    """A batch to be translated.

    source [B, S], padded; visible [B, S] int32, 0 where no layer may look, as at padding; limits and minimums [B] and
    prefixes [B, P] as in Constraints; numbers [B, 2] int32 make sentences draw differently, by their line and part.
    """

    source: np.ndarray
    visible: np.ndarray
    limits: np.ndarray
    minimums: np.ndarray
    prefixes: np.ndarray
    numbers: np.ndarray


def default_limit(source_length: Any) -> Any:
    """Tokens that a translation may have, for a source of so many (a number or an array)."""
    return 2 * source_length + 10


def prefix_room(tokens: int) -> int:
    """Padded length of prefixes of at most so many tokens."""
    return -(-tokens // PREFIX_ROOM) * PREFIX_ROOM


def search(
    networks: Sequence[Network],
    request: Request,
    options: DecodingOptions,
    longest: int,
    wanted: int = 1,
    *,
    whole_batches: bool = False,
) -> Hypotheses:
    """So many wanted hypotheses [B, wanted] of a batch, computed on the devices.

    Args:
      longest: most tokens that the networks can take.
      whole_batches: whether the batch stays together to the end: computes more, and is compiled in less time.
    """
    program, arguments = compile_search(networks, request, options, longest, wanted, whole_batches=whole_batches)
    found = gather_to_host(program(*arguments))
    return Hypotheses(found.tokens[:, :wanted], found.scores[:, :wanted])


def compile_search(
    networks: Sequence[Network],
    request: Request,
    options: DecodingOptions,
    longest: int,
    wanted: int = 1,
    *,
    whole_batches: bool = False,
) -> tuple[jax.stages.Compiled, tuple[Any, ...]]:
    """The program that `search` runs and what it is given; to compile it, jax.ShapeDtypeStructs do for all arrays."""
    padded = default_limit(request.source.shape[1]) + request.prefixes.shape[1]
    static = {
        "graphdefs": tuple(network.graphdef for network in networks),
        "width": wanted if options.temperature else options.beam_size,
        "length": options.max_decoding_length or min(max(padded, options.min_decoding_length), longest),
        "alpha": options.length_penalty,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "whole_batches": whole_batches,
    }
    drawing = (np.uint32(options.seed), np.float32(options.temperature)) if options.temperature else None
    arguments = [network.params for network in networks], request, drawing, np.int32(wanted)
    return compiled_program(_search, *arguments, **static), arguments


@functools.partial(
    jax.jit, static_argnames=("graphdefs", "width", "length", "alpha", "top_k", "top_p", "whole_batches")
)
def _search(
    params: Sequence[Any],
    request: Request,
    drawing: tuple[int, float] | None,
    wanted: jax.Array | int,
    *,
    graphdefs: tuple[nnx.GraphDef, ...],
    width: int,
    length: int,
    alpha: float,
    top_k: int | None,
    top_p: float | None,
    whole_batches: bool,
) -> Hypotheses:
    """drawing: seed and temperature, or None for a search."""
    models = [nnx.merge(graphdef, own) for graphdef, own in zip(graphdefs, params, strict=True)]
    first = min(length, request.source.shape[1] + request.prefixes.shape[1] + MORE_THAN_THE_SOURCE)
    first = length if whole_batches else first
    started = [model.start_decoding(request.source, width, first, request.visible) for model in models]

    def step(tokens: jax.Array, index: jax.Array, lineage: jax.Array, states: Any) -> tuple[jax.Array, Any]:
        stepped = [
            model.decode_step(tokens, index, lineage, *state) for model, state in zip(models, states, strict=True)
        ]
        logits = _mean_probability([logits for logits, _ in stepped])
        after = [(memory, caches) for (memory, _), (_, caches) in zip(states, stepped, strict=True)]
        return _without_special_tokens(logits), after

    def longer(states: Any, length: int) -> Any:
        return [(memory, [cache.longer(length * width) for cache in caches]) for memory, caches in states]

    constraints = Constraints(*map(jnp.asarray, (request.limits, request.minimums, request.prefixes)))
    task = SearchTask(constraints, length, BOS_ID, EOS_ID, alpha, GrowableState(first, longer), not whole_batches)
    if drawing:
        seed, temperature = drawing
        keys = _keys(seed, request.numbers, width)
        return sample(step, started, task, keys=keys, temperature=temperature, top_k=top_k, top_p=top_p)
    if width == 1:
        return greedy_search(step, started, task)
    return beam_search(step, started, task, beams=width, wanted=wanted)


def _without_special_tokens(logits: jax.Array) -> jax.Array:
    """[B, K, V]: minus infinity for padding, start and unknown; a pass over the first few columns, not over all."""
    never = jnp.array([PAD_ID, BOS_ID, UNK_ID])
    some = logits[..., : int(max(PAD_ID, BOS_ID, UNK_ID)) + 1]
    some = jnp.where(jnp.isin(jnp.arange(some.shape[-1]), never), -jnp.inf, some)
    return jax.lax.dynamic_update_slice_in_dim(logits, some, 0, axis=-1)


def _mean_probability(logits: Sequence[jax.Array]) -> jax.Array:
    """Logits of the mean of the networks' probabilities; those of the only network as they are."""
    if len(logits) == 1:
        return logits[0]
    return jax.nn.logsumexp(jax.nn.log_softmax(jnp.stack(logits)), axis=0) - math.log(len(logits))


def _keys(seed: jax.Array | int, numbers: jax.Array | np.ndarray, samples: int) -> jax.Array:
    """[B, K] keys, each a function of the seed, the sentence's numbers and the sample's."""

    def key(number: jax.Array, sample: jax.Array) -> jax.Array:
        of_part = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number[0]), number[1])
        return jax.random.fold_in(of_part, sample)

    return jax.vmap(jax.vmap(key, (None, 0)), (0, None))(jnp.asarray(numbers), jnp.arange(samples))


def log_probabilities(networks: Sequence[Network], batch: Batch) -> np.ndarray:
    """Natural logarithm of the probability of each target given its source, [B]; the end token counts."""
    graphdefs = tuple(network.graphdef for network in networks)
    return gather_to_host(_log_probabilities([network.params for network in networks], batch, graphdefs=graphdefs))


@functools.partial(jax.jit, static_argnames="graphdefs")
def _log_probabilities(params: Sequence[Any], batch: Batch, *, graphdefs: tuple[nnx.GraphDef, ...]) -> jax.Array:
    models = [nnx.merge(graphdef, own) for graphdef, own in zip(graphdefs, params, strict=True)]
    logits = _mean_probability([model(batch.source, batch.target_in)[0] for model in models])
    of_targets = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(batch.target_out)[..., None], axis=-1)
    return jnp.sum(jnp.where(batch.target_out != PAD_ID, of_targets[..., 0], 0.0), axis=-1)
