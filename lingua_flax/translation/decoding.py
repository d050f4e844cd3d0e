"""Compiled programs that decode or score a batch with one network, or with an ensemble by averaging probabilities.

B sentences, S padded source length, P padded prefix length, K beams or samples, L maximum target length, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.data.batch import Batch
from lingua_flax.model.transformer import Transformer
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation import search


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Network:
    """A network as an argument of a compiled program, which depends on its structure, but not on its parameters."""

    graphdef: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    params: Any


class DecodingRequest(NamedTuple):
    """A batch of sentences to translate, as int32 arrays; `max_lengths` to `prefixes` are those of Constraints."""

    source: np.ndarray | jax.Array  # padded token ids, [B, S]
    visible: np.ndarray | jax.Array  # [B, S]; 0 at padding and at any other position that no layer may attend to
    max_lengths: np.ndarray | jax.Array
    min_lengths: np.ndarray | jax.Array
    num_hypotheses: np.ndarray | jax.Array
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
    """What the programs that decode a batch depend on, besides the networks and the shapes of their arguments."""

    width: int  # K, the number of beams or samples
    room: int  # R, the number of positions for which a batch has room at first
    top_k: int | None = None
    top_p: float | None = None
    is_recorded: bool = False  # a single beam considers other tokens, too


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """How a batch is decoded."""

    program: Program = dataclasses.field(metadata={"static": True})
    sampling: Any  # a seed, uint32, and a temperature, float32; None for a search
    alpha: Any  # the exponent of the length penalty, float32
    offset: Any  # what it adds to lengths, float32


class Searched(NamedTuple):
    """How far a batch has come, which sentences are done, and the hypotheses, as many as there are beams or samples."""

    progress: search.SearchState
    is_done: jax.Array  # [B]
    hypotheses: search.Hypotheses


@jax.jit
def start(
    networks: Sequence[Network], request: DecodingRequest, how: Decoding, max_steps: Any, enough: Any
) -> Searched:
    """Begins the search of a batch; the limits are those of `search.advance`."""
    progress = _begun(_merged(networks), request, how)
    return go_on(networks, progress, how, jnp.ones(len(progress.begun), bool), max_steps, enough)


@functools.partial(jax.jit, donate_argnames="progress")
def go_on(
    networks: Sequence[Network],
    progress: search.SearchState,
    how: Decoding,
    active: jax.Array,
    max_steps: Any,
    enough: Any,
) -> Searched:
    """Goes on with the search of a batch; the limits are those of `search.advance`."""
    own = _search(_merged(networks), how)
    progress = search.advance(own, progress, active, max_steps, enough)
    return Searched(progress, own.done(progress), own.result(progress))


@functools.partial(jax.jit, donate_argnames="progress")
def join(
    networks: Sequence[Network], progress: search.SearchState, request: DecodingRequest, rows: jax.Array, how: Decoding
) -> search.SearchState:
    """Puts the sentences of a request into rows of a batch, those with a number that no row has into none.

    What the caches hold of the sentences before them is not visible to the new ones, so it stays.
    """

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[rows].set(new, mode="drop")

    def of_sentences(progress: search.SearchState) -> search.SearchState:
        return progress._replace(step=None, state=[source for source, _ in progress.state])  # type: ignore[arg-type]

    new = _begun(_merged(networks), request, how)
    new = new._replace(begun=new.begun + progress.step)
    joined = jax.tree.map(put, of_sentences(progress), of_sentences(new))
    caches = [caches for _, caches in progress.state]
    return joined._replace(step=progress.step, state=list(zip(joined.state, caches, strict=True)))


@functools.partial(jax.jit, static_argnames=("room", "source_length"))
def take(progress: search.SearchState, rows: jax.Array, *, room: int, source_length: int) -> search.SearchState:
    """Returns rows of a batch that all began together, padded to more positions and to a greater source length."""
    progress = jax.tree.map(lambda leaf: leaf[rows] if leaf.ndim else leaf, progress)
    width = progress.tokens.shape[1]
    states = [
        (source.padded_to(source_length), [cache.padded_to(room * width) for cache in caches])
        for source, caches in progress.state
    ]
    return progress._replace(state=states).with_room(room)


def _begun(models: Sequence[Transformer], request: DecodingRequest, how: Decoding) -> search.SearchState:
    source, visible, *constraints, numbers = map(jnp.asarray, request)
    width, room = how.program.width, how.program.room
    # Without the barrier, XLA transposes the keys of the source anew at every position.
    states = jax.lax.optimization_barrier([model.start_decoding(source, width, room, visible) for model in models])
    keys = _random_keys(how.sampling[0], numbers, width) if how.sampling else None
    return _search(models, how).begin(search.Constraints(*constraints), states, room, keys)


def _search(models: Sequence[Transformer], how: Decoding) -> search.Search:
    def step(
        tokens: jax.Array, positions: jax.Array, slot: jax.Array, beam_history: jax.Array, states: Any
    ) -> tuple[jax.Array, Any]:
        outputs = [
            model.decode_step(tokens, positions, slot, beam_history, *state)
            for model, state in zip(models, states, strict=True)
        ]
        logits = _average_probabilities([logits for logits, _ in outputs])
        new_states = [(source, caches) for (source, _), (_, caches) in zip(states, outputs, strict=True)]
        return mask_special_tokens(logits), new_states

    program, ends = how.program, (BOS_ID, EOS_ID)
    if how.sampling:
        sampling = search.Sampling(how.sampling[1], program.top_k, program.top_p)
        return search.IndependentRows(step, program.width, *ends, how.alpha, sampling, how.offset)
    if program.width == 1 and not program.is_recorded:
        return search.IndependentRows(step, 1, *ends, how.alpha, offset=how.offset)
    return search.BeamSearch(step, program.width, *ends, how.alpha, how.offset)


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


def _random_keys(seed: jax.Array | int, numbers: jax.Array, samples: int) -> jax.Array:
    """Returns the data of keys [B, K], each a function of the seed, the sentence's numbers and the sample's index."""

    def key(number: jax.Array, sample_index: jax.Array) -> jax.Array:
        part_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number[0]), number[1])
        return jax.random.fold_in(part_key, sample_index)

    keys = jax.vmap(jax.vmap(key, (None, 0)), (0, None))(numbers, jnp.arange(samples))
    return jax.random.key_data(keys)


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
