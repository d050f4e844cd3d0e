"""Greedy search, beam search and sampling over any function that gives the next tokens' logits; knows no model.

B sentences, K beams or samples, V vocabulary, L room for the longest hypothesis in tokens, the end token included.
`step(tokens, index, lineage, state)` is given the tokens [B, K] that stand before position `index` and returns logits
[B, K, V] for that position and its new state, a pytree of arrays [B, ...]. Hypotheses change their row k from position
to position, but a state is never put into another order, which would mean to copy all of it: lineage [B, K, L] says in
which row each hypothesis stood at each position so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Step = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
Carry = TypeVar("Carry", "_Rows", "_Beam")
IMPOSSIBLE = -1e30  # a log-probability that survives additions, where minus infinity would make NaN


class Constraints(NamedTuple):
    """What the hypotheses of each sentence must be like, so that none depends on its neighbours.

    limits [B]: most tokens they may have, at most L; minimums [B]: fewest; both count the end token. prefixes [B, P]:
    the tokens they begin with, padded with zeros (P may be 0).
    """

    limits: jax.Array
    minimums: jax.Array
    prefixes: jax.Array


class GrowableState(NamedTuple):
    """States that begin with less room, since a step reads all of it.

    first: the positions that they have room for at first, at most L; longer(state, L): the state with room for all.
    """

    first: int
    longer: Callable[[Any, int], Any]


class SearchTask(NamedTuple):
    """What every search is given: L, the tokens that all hypotheses start from and end with, alpha of the length
    penalty, the rooms of its states, None where they have room for all L from the beginning, and whether the last few
    sentences go on in smaller batches, which computes less and takes longer to compile."""

    constraints: Constraints
    length: int
    start: int
    end: int
    alpha: float = 0.0
    rooms: GrowableState | None = None
    in_smaller_batches: bool = True


class Hypotheses(NamedTuple):
    """The best hypotheses of each sentence, best first.

    tokens [B, K, L] end with the end token and are padded with zeros; scores [B, K] are log-probabilities divided by
    the length penalty, IMPOSSIBLE where there are fewer than K.
    """

    tokens: jax.Array
    scores: jax.Array


def length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + length) / 6)**alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def greedy_search(step: Step, state: Any, task: SearchTask) -> Hypotheses:
    """The likeliest token at each position, until every sentence has ended; tokens [B, 1, L], scores [B, 1]."""

    def likeliest(logits: jax.Array, _: jax.Array, __: None) -> jax.Array:
        return jnp.argmax(logits, axis=-1)

    return _one_token_after_the_other(step, state, task, likeliest, None, rows=1)


def sample(
    step: Step,
    state: Any,
    task: SearchTask,
    *,
    keys: jax.Array,
    temperature: jax.Array | float,
    top_k: int | None,
    top_p: float | None,
) -> Hypotheses:
    """Draws each token from the probabilities to the power of 1 / temperature, K hypotheses of each sentence.

    Args:
      keys: [B, K] random keys; what is drawn for a hypothesis depends on nothing but its own key and the logits.
      top_k: draw from so many of the likeliest tokens only (Fan et al. 2018).
      top_p: of those draw only from the likeliest ones that together reach this probability (Holtzman et al. 2020).

    Returns: hypotheses with their scores under the network itself, whatever the temperature.
    """

    def draw(logits: jax.Array, index: jax.Array, keys: jax.Array) -> jax.Array:
        def noise(key: jax.Array) -> jax.Array:
            return jax.random.gumbel(jax.random.fold_in(key, index), logits.shape[-1:])

        of_top = _only_top(logits / temperature, top_k, top_p)
        return jnp.argmax(of_top + jax.vmap(jax.vmap(noise))(keys), axis=-1)

    rows = keys.shape[1]
    found = _one_token_after_the_other(step, state, task, draw, keys, rows=rows)
    scores, order = jax.lax.top_k(found.scores, rows)
    return Hypotheses(_pick(found.tokens, order), scores)


def _only_top(logits: jax.Array, top_k: int | None, top_p: float | None) -> jax.Array:
    """[B, K, V]: the logits of the tokens to draw from, IMPOSSIBLE for the others."""
    if top_k is not None:
        (values, _) = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
        logits = jnp.where(logits >= values[..., -1:], logits, 2 * IMPOSSIBLE)
    if top_p is not None:
        likeliest_first = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(likeliest_first, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        needed = jnp.sum(before < top_p, axis=-1, keepdims=True)
        least = jnp.take_along_axis(likeliest_first, jnp.maximum(needed - 1, 0), axis=-1)
        logits = jnp.where(logits >= least, logits, 2 * IMPOSSIBLE)
    return logits


def _one_token_after_the_other(
    step: Step,
    state: Any,
    task: SearchTask,
    choose: Callable[[jax.Array, jax.Array, Any], jax.Array],
    given: Any,
    *,
    rows: int,
) -> Hypotheses:
    """Hypotheses that never part: choose(logits [B, K, V], position, given) says the next token of each [B, K]; what
    it is given are arrays [B, ...]."""

    def body(carry: _Rows, room: int) -> _Rows:
        lineage = jnp.broadcast_to(jnp.arange(rows)[None, :, None], (len(carry.last), rows, room))
        logits, state = step(carry.last, carry.position, lineage, carry.state)
        allowed = _allowed(logits, carry.position, carry.constraints, task.end)
        token = jnp.where(carry.done, 0, choose(allowed, carry.position, carry.given))
        gained = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
        return _Rows(
            position=carry.position + 1,
            last=token,
            tokens=jax.lax.dynamic_update_slice_in_dim(carry.tokens, token[..., None], carry.position, axis=2),
            score=carry.score + jnp.where(carry.done, 0.0, gained),
            done=carry.done | (token == task.end),
            constraints=carry.constraints,
            given=carry.given,
            state=state,
        )

    batch = len(task.constraints.limits)
    first = _Rows(
        position=jnp.int32(0),
        last=jnp.full((batch, rows), task.start, jnp.int32),
        tokens=jnp.zeros((batch, rows, task.length), jnp.int32),
        score=jnp.zeros((batch, rows), jnp.float32),
        done=jnp.zeros((batch, rows), bool),
        constraints=task.constraints,
        given=given,
        state=state,
    )

    def result(carry: _Rows) -> Hypotheses:
        lengths = jnp.sum(carry.tokens != 0, axis=-1)
        return Hypotheses(carry.tokens, carry.score / length_penalty(lengths, task.alpha))

    return _until_done(task, body, lambda carry: jnp.all(carry.done, axis=1), result, first)


class _Rows(NamedTuple):
    position: jax.Array
    last: jax.Array  # [B, K]
    tokens: jax.Array  # [B, K, L]
    score: jax.Array  # [B, K]
    done: jax.Array  # [B, K]
    constraints: Constraints
    given: Any
    state: Any


def _until_done(
    task: SearchTask,
    body: Callable[[Carry, int], Carry],
    done: Callable[[Carry], jax.Array],
    result: Callable[[Carry], Hypotheses],
    carry: Carry,
) -> Hypotheses:
    """Repeats body(carry, room) until done(carry) [B] holds for all sentences; the results of all.

    All begin with less room, which is enough for most. Those that need more, or are the last few, go on in smaller
    batches of their own, one after the other: of Multi30k's sentences, sorted by length, most batches of 64 have one
    or two that take twice as many tokens as the others. Sentences a second with 5 beams: 241 without all this, 346 with
    one smaller batch, 408 with less room at first too, 470 with a second smaller batch.
    """
    length = task.length
    first, longer = task.rooms or (length, lambda state, _: state)

    def run(carry: Carry, sizes: Sequence[int], room: int) -> Hypotheses:
        few = sizes[0] if sizes else 0

        def goes_on(now: Carry) -> jax.Array:
            return (jnp.sum(~done(now)) > few) & (now.position < room)

        carry = jax.lax.while_loop(goes_on, lambda now: body(now, room), carry)
        if not few:
            return result(carry)

        def take_few(found: tuple[jax.Array, Hypotheses]) -> tuple[jax.Array, Hypotheses]:
            ended, results = found
            _, left = jax.lax.top_k((~ended).astype(jnp.int32), few)
            rest = jax.tree.map(lambda leaf: leaf[left] if leaf.ndim else leaf, carry)
            own = run(rest._replace(state=longer(rest.state, length)), sizes[1:], length)
            return ended.at[left].set(True), jax.tree.map(lambda all_, new: all_.at[left].set(new), results, own)

        return jax.lax.while_loop(lambda found: ~jnp.all(found[0]), take_few, (done(carry), result(carry)))[1]

    if sizes := _smaller_batches(len(done(carry))) if task.in_smaller_batches else []:
        return run(carry, sizes, first)
    return run(carry._replace(state=longer(carry.state, length)), sizes, length)


def _smaller_batches(batch: int) -> list[int]:
    """In how many sentences at a time the rest goes on, and the rest of these; none where the batch is small."""
    return [size for size in (batch * 3 // 8, batch * 3 // 32) if size > 1]


def beam_search(
    step: Step, state: Any, task: SearchTask, *, beams: int, wanted: jax.Array | int | None = None
) -> Hypotheses:
    """Beam search with length penalty; a sentence is done when K of its hypotheses have ended, or earlier where none
    can still get among the `wanted` best, by default all K.

    Of the 2 K likeliest continuations of a sentence, those among the first K that end it are finished hypotheses, and
    the first K that do not end it live on. At its limit every hypothesis must end. So one beam is greedy search, and
    as many beams as there are hypotheses is exhaustive search.
    """
    batch, length = len(task.constraints.limits), task.length

    def done(beam: _Beam) -> jax.Array:
        return _is_done(beam, beams if wanted is None else wanted, task.alpha) | (
            beam.position >= beam.constraints.limits
        )

    def body(beam: _Beam, room: int) -> _Beam:
        here = jnp.broadcast_to(jnp.arange(beams)[None, :, None], (len(beam.last), beams, 1))
        lineage = jax.lax.dynamic_update_slice_in_dim(beam.lineage, here, beam.position, axis=2)
        logits, state = step(beam.last, beam.position, lineage[:, :, :room], beam.state)
        scores, origins, tokens = _best_continuations(
            beam.scores, logits, beam.position, beam.constraints, count=2 * beams, end=task.end
        )
        ends = tokens == task.end
        sequences = _extend(beam.tokens, origins, tokens, beam.position)
        ended = jnp.where(
            ends & (scores > IMPOSSIBLE / 2), scores / length_penalty(beam.position + 1, task.alpha), IMPOSSIBLE
        )
        ended = jnp.where(done(beam)[:, None], IMPOSSIBLE, ended)
        finished = _best_finished(beam.finished, sequences[:, :beams], ended[:, :beams])
        alive_scores, chosen = jax.lax.top_k(jnp.where(ends, 2 * IMPOSSIBLE, scores), beams)
        origins = jnp.take_along_axis(origins, chosen, axis=1)
        return _Beam(
            position=beam.position + 1,
            last=jnp.take_along_axis(tokens, chosen, axis=1),
            tokens=_pick(sequences, chosen),
            scores=jnp.maximum(alive_scores, IMPOSSIBLE),
            finished=finished,
            lineage=_pick(lineage, origins),
            constraints=beam.constraints,
            state=state,
        )

    return _until_done(
        task,
        body,
        done,
        lambda beam: beam.finished,
        _Beam(
            position=jnp.int32(0),
            last=jnp.full((batch, beams), task.start, jnp.int32),
            tokens=jnp.zeros((batch, beams, length), jnp.int32),
            scores=jnp.full((batch, beams), IMPOSSIBLE).at[:, 0].set(0.0),  # all beams are alike at first: one counts
            finished=Hypotheses(
                jnp.zeros((batch, beams, length), jnp.int32), jnp.full((batch, beams), IMPOSSIBLE, jnp.float32)
            ),
            lineage=jnp.zeros((batch, beams, length), jnp.int32),
            constraints=task.constraints,
            state=state,
        ),
    )


class _Beam(NamedTuple):
    position: jax.Array
    last: jax.Array  # [B, K]
    tokens: jax.Array  # [B, K, L]
    scores: jax.Array  # [B, K], log-probabilities
    finished: Hypotheses
    lineage: jax.Array  # [B, K, L]
    constraints: Constraints
    state: Any


def _is_done(beam: _Beam, wanted: jax.Array | int, alpha: float) -> jax.Array:
    """[B]: K hypotheses of the sentence have ended, or `wanted` ones with which no other can catch up.

    A log-probability can only fall, and the length penalty divides it by at most that of the limit.
    """
    best_to_come = beam.scores[:, 0] / length_penalty(beam.constraints.limits, alpha)
    least_wanted = jnp.take(beam.finished.scores, wanted - 1, axis=1)
    return (beam.finished.scores[:, -1] > IMPOSSIBLE / 2) | (least_wanted >= best_to_come)


def _only_token(position: jax.Array, constraints: Constraints, end: int) -> jax.Array:
    """[B]: the one token that may stand at this position, of a prefix or at a limit; 0 where any may."""
    limits, _, prefixes = constraints
    only = jnp.where(position == limits - 1, end, 0)
    if prefixes.shape[1]:
        forced = jnp.where(position < prefixes.shape[1], prefixes[:, jnp.minimum(position, prefixes.shape[1] - 1)], 0)
        only = jnp.where(forced > 0, forced, only)
    return only


def _allowed(logits: jax.Array, position: jax.Array, constraints: Constraints, end: int) -> jax.Array:
    """[B, K, V]: IMPOSSIBLE for the tokens that may not stand at this position; the others keep their own."""
    token = jnp.arange(logits.shape[-1])
    only = _only_token(position, constraints, end)[:, None]
    too_early = (position < constraints.minimums - 1)[:, None]
    allowed = jnp.where(only > 0, token == only, ~too_early | (token != end))
    return jnp.where(allowed[:, None], logits, IMPOSSIBLE)


def _best_continuations(
    scores: jax.Array, logits: jax.Array, position: jax.Array, constraints: Constraints, *, count: int, end: int
) -> tuple[jax.Array, ...]:
    """The best continuations of each sentence: log-probabilities, beams they come from, tokens, [B, count] each.

    The constraints are held against the few best: as masks they would be passes over all logits [B, K, V].
    """
    beams = logits.shape[1]
    offsets = scores - jax.nn.logsumexp(logits, axis=-1)
    best, origins, tokens = best_sums(logits, offsets, count + beams)  # so many more as ends may have to be taken out
    too_early = (position < constraints.minimums - 1)[:, None]
    best = jnp.where(too_early & (tokens == end), IMPOSSIBLE, best)
    only = _only_token(position, constraints, end)[:, None]
    of_only = jnp.take_along_axis(logits, only[:, None], axis=-1)[..., 0] + offsets
    of_only = jnp.pad(of_only, ((0, 0), (0, count)), constant_values=2 * IMPOSSIBLE)
    best, tokens = jnp.where(only > 0, of_only, best), jnp.where(only > 0, only, tokens)
    origins = jnp.where(only > 0, jnp.minimum(jnp.arange(count + beams), beams - 1), origins)
    best, order = jax.lax.top_k(best, count)
    return best, jnp.take_along_axis(origins, order, axis=1), jnp.take_along_axis(tokens, order, axis=1)


def best_sums(x: jax.Array, offsets: jax.Array, count: int) -> tuple[jax.Array, ...]:
    """The greatest of the sums x[b, k, v] + offsets[b, k] for each b: the sums, k and v, [B, count] each, best first.

    They are all in those `count` blocks of x whose own greatest sums are the greatest: only the maxima of the blocks,
    and then those blocks, are sorted. Of equal sums the first counts, as with jax.lax.top_k.
    """
    batch, rows, columns = x.shape
    block = _block(columns, rows * columns / count)
    blocks = x.reshape(batch, -1, block)
    of_blocks = jnp.repeat(offsets, columns // block, axis=1)
    _, chosen = jax.lax.top_k(jnp.max(blocks, axis=-1) + of_blocks, count)
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=1)
    candidates += jnp.take_along_axis(of_blocks, chosen, axis=1)[..., None]
    sums, where = jax.lax.top_k(candidates.reshape(batch, -1), count)
    where = jnp.take_along_axis(chosen, where // block, axis=1) * block + where % block
    return sums, where // columns, where % columns


def _block(columns: int, candidates: float) -> int:
    """The length of the blocks that the columns are cut into: so that both sorts are of about as many values."""
    ideal = math.sqrt(candidates)
    block = min((n for n in range(1, columns + 1) if columns % n == 0), key=lambda n: abs(math.log(n / ideal)))
    return block if ideal >= 4 and 0.5 < block / ideal < 2.0 else 1


def _extend(sequences: jax.Array, origins: jax.Array, tokens: jax.Array, index: jax.Array) -> jax.Array:
    """The sequences [B, K, L] that the continuations [B, C] come from, with their token at position index."""
    return jax.lax.dynamic_update_slice_in_dim(_pick(sequences, origins), tokens[:, :, None], index, axis=2)


def _best_finished(finished: Hypotheses, sequences: jax.Array, scores: jax.Array) -> Hypotheses:
    """The K best of the finished hypotheses and the new ones."""
    all_scores = jnp.concatenate([finished.scores, scores], axis=1)
    all_tokens = jnp.concatenate([finished.tokens, sequences], axis=1)
    best, chosen = jax.lax.top_k(all_scores, finished.scores.shape[1])
    return Hypotheses(_pick(all_tokens, chosen), best)


def _pick(array: jax.Array, chosen: jax.Array) -> jax.Array:
    """array [B, K, ...] and indices [B, C] -> [B, C, ...]."""
    return jax.vmap(lambda rows, index: rows[index])(array, chosen)
