"""A search problem small enough to enumerate: the logits of a token depend only on position and previous token."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lingua_flax.translation.search import BeamSearch, Constraints, Hypotheses, IndependentRows, Search, advance

END, START, LENGTH = 1, 2, 4
WORDS = [2, 3, 4]  # the tokens that do not end a sentence; 0 is padding, and impossible
ALL = sum(len(WORDS) ** n for n in range(LENGTH))  # number of hypotheses of at most LENGTH tokens, end token included
WIDE = ALL + 7  # beams


def constraints(
    max_lengths: Sequence[int] = (LENGTH,) * 3,
    min_length: int = 1,
    prefixes: Sequence[Sequence[int]] = ((),) * 3,
    num_hypotheses: int = 1,
) -> Constraints:
    """Returns the constraints of several sentences."""
    room = max(map(len, prefixes))
    padded = [[*prefix, *[0] * (room - len(prefix))] for prefix in prefixes]
    count = len(max_lengths)
    arrays = (max_lengths, [min_length] * count, [num_hypotheses] * count, np.reshape(padded, (count, room)))
    as_integers: list[Any] = [np.array(array, np.int32) for array in arrays]
    return Constraints(*as_integers)


def random_tables(sentences: int, length: int = LENGTH, *, seed: int, scale: float) -> np.ndarray:
    """Returns logits of the next token for each sentence, position and last token."""
    logits = np.random.default_rng(seed).normal(size=(sentences, length, 5, 5)).astype(np.float32) * scale
    logits[..., 0] = -np.inf
    return logits


def look_up(
    tokens: jax.Array, positions: jax.Array, slot: jax.Array, beam_history: jax.Array, tables: jax.Array
) -> tuple[jax.Array, Any]:
    """The step of a search: the state, which it does not change, is the tables."""
    return jax.vmap(lambda table, position, last: table[position][last])(tables, positions, tokens), tables


def finished(search: Search, own: Constraints, state: Any, room: int = LENGTH, keys: Any = None) -> Hypotheses:
    """Returns what a search finds."""
    progress = search.begin(Constraints(*map(jnp.asarray, own)), state, room, keys)
    everywhere = jnp.ones(len(own.max_lengths), bool)
    return search.result(advance(search, progress, everywhere, max_steps=room, enough=0))


@functools.partial(jax.jit, static_argnames="beams")
def compiled_beam_search(
    tables: jax.Array, own: Constraints, *, beams: int, alpha: Any, offset: Any = 5.0
) -> Hypotheses:
    """Returns the hypotheses that a beam search finds in the tables."""
    return finished(BeamSearch(look_up, beams, START, END, alpha, offset), own, tables, tables.shape[1])


@jax.jit
def compiled_greedy_search(tables: jax.Array, own: Constraints, *, alpha: Any) -> Hypotheses:
    """Returns the hypotheses that a greedy search finds in the tables."""
    return finished(IndependentRows(look_up, 1, START, END, alpha), own, tables)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns log-probabilities."""
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def penalty(length: float, alpha: float, form: str = "wu") -> float:
    """Returns what the log-probability of a hypothesis is divided by."""
    return length**alpha if form == "length" else ((5 + length) / 6) ** alpha


def allowed_tokens(position: int, limit: int, minimum: int = 1, prefix: Sequence[int] = ()) -> list[int]:
    """Returns the tokens that a hypothesis may have at a position."""
    if position < len(prefix):
        return [prefix[position]]
    if position == limit - 1:
        return [END]
    return WORDS if position < minimum - 1 else [END, *WORDS]


Scored = list[tuple[float, list[int]]]  # a score and tokens


def beam_search_by_lists(
    table: np.ndarray, beams: int, alpha: float, form: str = "wu", **limits: Any
) -> tuple[list[Scored], Scored]:
    """Returns what a beam search of a sentence considers at each step, and the hypotheses that it finds, best first.

    The scores of the former are log-probabilities. The search ends when nothing alive can overtake, at any of the
    lengths that are left; with one beam, when it has a hypothesis.
    """
    log_probs, limit = log_softmax(table), limits["limit"]
    alive: Scored = [(0.0, [])]
    steps: list[Scored] = []
    finished: Scored = []
    for position in range(limit):
        candidates = [
            (score + log_probs[position, tokens[-1] if tokens else START, token], [*tokens, token])
            for score, tokens in alive
            for token in allowed_tokens(position, **limits)
        ]
        best = sorted(candidates, reverse=True)[: 2 * beams]
        steps.append(best)
        ended = [
            (score / penalty(position + 1, alpha, form), tokens) for score, tokens in best[:beams] if tokens[-1] == END
        ]
        finished = sorted(finished + ended, reverse=True)[:beams]
        alive = [candidate for candidate in best if candidate[1][-1] != END][:beams]
        reachable = [score / penalty(n, alpha, form) for score, _ in alive for n in range(position + 2, limit + 1)]
        is_settled = len(finished) == beams and finished[-1][0] >= max(reachable, default=-np.inf)
        if is_settled or not alive or (beams == 1 and finished):
            break
    return steps, finished
