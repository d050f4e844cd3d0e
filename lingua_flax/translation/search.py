"""Greedy search, beam search and sampling, independent of any model: they only need the logits of the next tokens.

B sentences, K beams or samples, V vocabulary, L maximum number of tokens of a hypothesis, end token included, R number
of positions that the state has room for (L, or at first fewer; see SearchTask).

`step(tokens, index, beam_history, state)` receives the tokens [B, K] that precede position `index`. It returns the
logits [B, K, V] for that position and the new state, a pytree of arrays [B, ...]. Hypotheses can change their row k
from one position to the next, but the state is never reordered, because that would copy all of it. Instead,
beam_history [B, K, R] holds the row that each hypothesis occupied at each position so far.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Num, Shaped

Step = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
IMPOSSIBLE = -1e30  # a log-probability that remains finite in sums, where minus infinity could produce NaN


class Constraints(NamedTuple):
    """Constraints on hypotheses, given for each sentence so that no result depends on the rest of the batch.

    Lengths count the end token, and max_lengths are at most L. The hypotheses begin with the prefixes, which are padded
    with zeros; P may be 0.
    """

    max_lengths: Int[Array, "B"]
    min_lengths: Int[Array, "B"]
    prefixes: Int[Array, "B P"]


class SearchTask(NamedTuple):
    """The arguments that all search algorithms share.

    A state that starts with room for `initial_room` positions and grows later saves time: each step reads all of it.
    """

    constraints: Constraints
    max_length: int  # L
    start_token: int
    end_token: int
    length_penalty: float | Float[Array, ""] = 0.0  # alpha, not negative
    initial_room: int | None = None  # by default, L
    grow: Callable[[Any, int], Any] = lambda state, _: state  # (state, L) -> the state with room for L positions
    shrink_batches: bool = True  # the last sentences continue in smaller batches: less to compute, more to compile


class Hypotheses(NamedTuple):
    """The best hypotheses of each sentence, best first: tokens ending with the end token and padded with zeros.

    Scores are log-probabilities divided by the length penalty, and IMPOSSIBLE where a sentence has fewer than K.
    """

    tokens: Int[Array, "B K L"]
    scores: Float[Array, "B K"]


class Search(NamedTuple):
    """A search as a loop over positions, which are counted by the field `position` of what it carries."""

    task: SearchTask
    initial: Any  # what the loop carries to the first position
    body: Callable[[Any, int], Any]  # (carry, R) -> the next carry
    done: Callable[[Any], jax.Array]  # carry -> whether each sentence is done, [B]
    result: Callable[[Any], Hypotheses]

    def run_steps(self, active: Bool[Array, "B"], steps: int) -> Any:
        """Computes up to `steps` positions, as long as the state has room and not all active sentences are done."""
        room = self.task.initial_room or self.task.max_length
        end = jnp.minimum(self.initial.position + steps, room)

        def should_continue(carry: Any) -> jax.Array:
            return jnp.any(active & ~self.done(carry)) & (carry.position < end)

        return jax.lax.while_loop(should_continue, lambda carry: self.body(carry, room), self.initial)

    def run(self) -> Hypotheses:
        """Computes positions until all sentences are done, and returns their hypotheses.

        The state starts with room for fewer than L positions, which is enough for most sentences. The sentences that
        need more, and the last few of a batch, continue in smaller batches, one after another: with Multi30k sorted by
        length, one or two sentences in most batches of 64 take twice as many tokens as the others. The gain is in
        docs/results/index.md. A batch that is too small to be divided starts with room for all L positions.
        """
        length, grow = self.task.max_length, self.task.grow

        def run_from(carry: Any, sizes: Sequence[int], room: int) -> Hypotheses:
            next_size = sizes[0] if sizes else 0

            def should_continue(carry: Any) -> jax.Array:
                return (jnp.sum(~self.done(carry)) > next_size) & (carry.position < room)

            carry = jax.lax.while_loop(should_continue, lambda carry: self.body(carry, room), carry)
            if not next_size:
                return self.result(carry)

            def finish_some(progress: tuple[jax.Array, Hypotheses]) -> tuple[jax.Array, Hypotheses]:
                finished, results = progress
                _, chosen = jax.lax.top_k((~finished).astype(jnp.int32), next_size)
                subset = jax.tree.map(lambda leaf: leaf[chosen] if leaf.ndim else leaf, carry)
                subset_results = run_from(subset._replace(state=grow(subset.state, length)), sizes[1:], length)
                return finished.at[chosen].set(True), jax.tree.map(
                    lambda old, new: old.at[chosen].set(new), results, subset_results
                )

            progress = self.done(carry), self.result(carry)
            return jax.lax.while_loop(lambda progress: ~jnp.all(progress[0]), finish_some, progress)[1]

        carry = self.initial
        batch = len(self.done(carry))
        if sizes := [size for size in (batch * 3 // 8, batch * 3 // 32) if size > 1 and self.task.shrink_batches]:
            return run_from(carry, sizes, self.task.initial_room or length)
        return run_from(carry._replace(state=grow(carry.state, length)), sizes, length)


def length_penalty(length: Num[Array, "*B"], alpha: float | Float[Array, ""]) -> Float[Array, "*B"]:
    """Returns ((5 + length) / 6)**alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def greedy_search(step: Step, state: Any, task: SearchTask) -> Search:
    """Chooses the likeliest token at each position until every sentence has ended; K is 1."""
    return _search_independent_rows(step, state, task, lambda logits, *_: jnp.argmax(logits, axis=-1), None, rows=1)


def sample(
    step: Step,
    state: Any,
    task: SearchTask,
    *,
    keys: Key[Array, "B K"],
    temperature: float | Float[Array, ""],
    top_k: int | None,
    top_p: float | Float[Array, ""] | None,
) -> Search:
    """Samples K hypotheses of each sentence, each of which depends only on its key and the logits.

    Each token is drawn with a probability proportional to its probability to the power of 1 / temperature; if given,
    only from the `top_k` likeliest tokens (Fan et al. 2018), and of these only from the likeliest that together reach
    the probability `top_p` (Holtzman et al. 2020). The scores are those of the network, whatever the temperature.
    """

    def draw(logits: jax.Array, index: jax.Array, keys: jax.Array) -> jax.Array:
        def noise(key: jax.Array) -> jax.Array:
            return jax.random.gumbel(jax.random.fold_in(key, index), logits.shape[-1:])

        kept = _keep_likeliest(logits / temperature, top_k, top_p)
        return jnp.argmax(kept + jax.vmap(jax.vmap(noise))(keys), axis=-1)

    return _search_independent_rows(step, state, task, draw, keys, rows=keys.shape[1])


def _keep_likeliest(
    logits: Float[Array, "B K V"], top_k: int | None, top_p: float | Float[Array, ""] | None
) -> Float[Array, "B K V"]:
    """Returns logits in which all tokens that must not be drawn are 2 * IMPOSSIBLE."""
    if top_k is not None:
        (values, _) = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
        logits = jnp.where(logits >= values[..., -1:], logits, 2 * IMPOSSIBLE)
    if top_p is not None:
        likeliest_first = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(likeliest_first, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        num_kept = jnp.sum(before < top_p, axis=-1, keepdims=True)
        threshold = jnp.take_along_axis(likeliest_first, jnp.maximum(num_kept - 1, 0), axis=-1)
        logits = jnp.where(logits >= threshold, logits, 2 * IMPOSSIBLE)
    return logits


def _search_independent_rows(
    step: Step,
    state: Any,
    task: SearchTask,
    choose: Callable[[jax.Array, jax.Array, Any], jax.Array],
    keys: Key[Array, "B K"] | None,
    *,
    rows: int,
) -> Search:
    """Decodes hypotheses that stay in their rows, one token at each step.

    choose(logits [B, K, V], position, keys) returns the next token of each hypothesis, [B, K].
    """
    batch = len(task.constraints.max_lengths)

    def body(carry: _RowsState, room: int) -> _RowsState:
        beam_history = jnp.broadcast_to(jnp.arange(rows)[None, :, None], (len(carry.last), rows, room))
        logits, state = step(carry.last, carry.position, beam_history, carry.state)
        allowed = _mask_forbidden(logits, carry.position, carry.constraints, task.end_token)
        token = jnp.where(carry.done, 0, choose(allowed, carry.position, carry.keys))
        gained = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
        return carry._replace(
            position=carry.position + 1,
            last=token,
            tokens=jax.lax.dynamic_update_slice_in_dim(carry.tokens, token[..., None], carry.position, axis=2),
            score=carry.score + jnp.where(carry.done, 0.0, gained),
            done=carry.done | (token == task.end_token),
            state=state,
        )

    initial = _RowsState(
        position=jnp.int32(0),
        last=jnp.full((batch, rows), task.start_token, jnp.int32),
        tokens=jnp.zeros((batch, rows, task.max_length), jnp.int32),
        score=jnp.zeros((batch, rows), jnp.float32),
        done=jnp.zeros((batch, rows), bool),
        constraints=task.constraints,
        keys=keys,
        state=state,
    )

    def result(carry: _RowsState) -> Hypotheses:
        lengths = jnp.sum(carry.tokens != 0, axis=-1)
        scores, order = jax.lax.top_k(carry.score / length_penalty(lengths, task.length_penalty), rows)
        return Hypotheses(_take_rows(carry.tokens, order), scores)

    return Search(task, initial, body, lambda carry: jnp.all(carry.done, axis=1), result)


class _RowsState(NamedTuple):
    position: Int[Array, ""]
    last: Int[Array, "B K"]
    tokens: Int[Array, "B K L"]
    score: Float[Array, "B K"]  # log-probabilities
    done: Bool[Array, "B K"]
    constraints: Constraints
    keys: Key[Array, "B K"] | None
    state: Any


def beam_search(
    step: Step, state: Any, task: SearchTask, *, beams: int, num_hypotheses: int | Int[Array, ""] | None = None
) -> Search:
    """Beam search with a length penalty.

    Of the 2 K likeliest continuations of a sentence, those among the first K that end it become finished hypotheses,
    and the first K that do not end it stay in the beam. At the limit of a sentence every hypothesis must end. A
    sentence is done when nothing in the beam can still become one of the `num_hypotheses` best (by default K) that the
    caller needs. As many beams as there are hypotheses are equivalent to exhaustive search.
    """
    batch, length = len(task.constraints.max_lengths), task.max_length
    needed = beams if num_hypotheses is None else num_hypotheses

    def done(beam: _BeamState) -> jax.Array:
        return _is_done(beam, needed, task.length_penalty) | (beam.position >= beam.constraints.max_lengths)

    def body(beam: _BeamState, room: int) -> _BeamState:
        own_rows = jnp.broadcast_to(jnp.arange(beams)[None, :, None], (len(beam.last), beams, 1))
        beam_history = jax.lax.dynamic_update_slice_in_dim(beam.beam_history, own_rows, beam.position, axis=2)
        logits, state = step(beam.last, beam.position, beam_history[:, :, :room], beam.state)
        scores, origins, tokens = _best_continuations(
            beam.scores, logits, beam.position, beam.constraints, count=2 * beams, end=task.end_token
        )
        ends = tokens == task.end_token
        sequences = jax.lax.dynamic_update_slice_in_dim(
            _take_rows(beam.tokens, origins), tokens[:, :, None], beam.position, axis=2
        )
        is_finished = ends & (scores > IMPOSSIBLE / 2)
        finished_scores = scores / length_penalty(beam.position + 1, task.length_penalty)
        finished_scores = jnp.where(is_finished, finished_scores, IMPOSSIBLE)
        finished_scores = jnp.where(done(beam)[:, None], IMPOSSIBLE, finished_scores)
        all_scores = jnp.concatenate([beam.finished.scores, finished_scores[:, :beams]], axis=1)
        all_tokens = jnp.concatenate([beam.finished.tokens, sequences[:, :beams]], axis=1)
        best_scores, best = jax.lax.top_k(all_scores, beams)
        alive_scores, chosen = jax.lax.top_k(jnp.where(ends, 2 * IMPOSSIBLE, scores), beams)
        origins = jnp.take_along_axis(origins, chosen, axis=1)
        return beam._replace(
            position=beam.position + 1,
            last=jnp.take_along_axis(tokens, chosen, axis=1),
            tokens=_take_rows(sequences, chosen),
            scores=jnp.maximum(alive_scores, IMPOSSIBLE),
            finished=Hypotheses(_take_rows(all_tokens, best), best_scores),
            beam_history=_take_rows(beam_history, origins),
            state=state,
        )

    initial = _BeamState(
        position=jnp.int32(0),
        last=jnp.full((batch, beams), task.start_token, jnp.int32),
        tokens=jnp.zeros((batch, beams, length), jnp.int32),
        # All beams start with the same hypothesis, so only the first one counts.
        scores=jnp.full((batch, beams), IMPOSSIBLE, jnp.float32).at[:, 0].set(0.0),
        finished=Hypotheses(
            jnp.zeros((batch, beams, length), jnp.int32), jnp.full((batch, beams), IMPOSSIBLE, jnp.float32)
        ),
        beam_history=jnp.zeros((batch, beams, length), jnp.int32),
        constraints=task.constraints,
        state=state,
    )
    return Search(task, initial, body, done, lambda beam: beam.finished)


class _BeamState(NamedTuple):
    position: Int[Array, ""]
    last: Int[Array, "B K"]
    tokens: Int[Array, "B K L"]
    scores: Float[Array, "B K"]  # log-probabilities
    finished: Hypotheses
    beam_history: Int[Array, "B K L"]
    constraints: Constraints
    state: Any


def _is_done(beam: _BeamState, needed: int | Int[Array, ""], alpha: float | Float[Array, ""]) -> Bool[Array, "B"]:
    """Returns whether each sentence is done in the sense of `beam_search`, apart from its limit.

    No hypothesis that is still to finish can score more than the best log-probability in the beam, which can only fall,
    divided by the length penalty at the limit, which is the largest (alpha is not negative). That K hypotheses have
    finished is no reason to end: the best one may still be in the beam.
    """
    best_possible = beam.scores[:, 0] / length_penalty(beam.constraints.max_lengths, alpha)
    worst_wanted = jnp.take(beam.finished.scores, needed - 1, axis=1)
    return worst_wanted >= best_possible


def _forced_token(position: Int[Array, ""], constraints: Constraints, end: int) -> Int[Array, "B"]:
    """Returns the only token allowed at this position by a prefix or a limit, or 0 if none is forced."""
    max_lengths, _, prefixes = constraints
    forced = jnp.where(position == max_lengths - 1, end, 0)
    if prefixes.shape[1]:
        prefix = jnp.where(position < prefixes.shape[1], prefixes[:, jnp.minimum(position, prefixes.shape[1] - 1)], 0)
        forced = jnp.where(prefix > 0, prefix, forced)
    return forced


def _mask_forbidden(
    logits: Float[Array, "B K V"], position: Int[Array, ""], constraints: Constraints, end: int
) -> Float[Array, "B K V"]:
    """Returns logits in which all tokens that are not allowed at this position are IMPOSSIBLE."""
    token = jnp.arange(logits.shape[-1])
    forced = _forced_token(position, constraints, end)[:, None]
    too_early = (position < constraints.min_lengths - 1)[:, None]
    allowed = jnp.where(forced > 0, token == forced, ~too_early | (token != end))
    return jnp.where(allowed[:, None], logits, IMPOSSIBLE)


def _best_continuations(
    scores: Float[Array, "B K"],
    logits: Float[Array, "B K V"],
    position: Int[Array, ""],
    constraints: Constraints,
    *,
    count: int,
    end: int,
) -> tuple[Float[Array, "B {count}"], Int[Array, "B {count}"], Int[Array, "B {count}"]]:
    """Returns the best continuations of each sentence: log-probabilities, the beams that they extend, and tokens.

    The constraints are applied to the few best candidates only: as masks they would be passes over all logits.
    """
    beams = logits.shape[1]
    offsets = scores - jax.nn.logsumexp(logits, axis=-1)
    # One more candidate for each beam, since its end token may be ruled out.
    best, origins, tokens = top_k_sums(logits, offsets, count + beams)
    too_early = (position < constraints.min_lengths - 1)[:, None]
    best = jnp.where(too_early & (tokens == end), IMPOSSIBLE, best)
    forced = _forced_token(position, constraints, end)[:, None]
    forced_scores = jnp.take_along_axis(logits, forced[:, None], axis=-1)[..., 0] + offsets
    forced_scores = jnp.pad(forced_scores, ((0, 0), (0, count)), constant_values=2 * IMPOSSIBLE)
    best, tokens = jnp.where(forced > 0, forced_scores, best), jnp.where(forced > 0, forced, tokens)
    origins = jnp.where(forced > 0, jnp.minimum(jnp.arange(count + beams), beams - 1), origins)
    best, order = jax.lax.top_k(best, count)
    return best, jnp.take_along_axis(origins, order, axis=1), jnp.take_along_axis(tokens, order, axis=1)


def top_k_sums(
    x: Float[Array, "B K V"], offsets: Float[Array, "B K"], count: int
) -> tuple[Float[Array, "B {count}"], Int[Array, "B {count}"], Int[Array, "B {count}"]]:
    """Returns the `count` greatest sums x[b, k, v] + offsets[b, k] of each b, best first, and their k and v.

    All of them lie in the `count` blocks with the greatest maxima, so only the maxima of all blocks and the elements of
    those blocks are sorted. Equal sums keep their order, as with jax.lax.top_k.
    """
    batch, rows, columns = x.shape
    block = _block_size(columns, rows * columns / count)
    blocks = x.reshape(batch, -1, block)
    block_offsets = jnp.repeat(offsets, columns // block, axis=1)
    _, chosen = jax.lax.top_k(jnp.max(blocks, axis=-1) + block_offsets, count)
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=1)
    candidates += jnp.take_along_axis(block_offsets, chosen, axis=1)[..., None]
    sums, indices = jax.lax.top_k(candidates.reshape(batch, -1), count)
    indices = jnp.take_along_axis(chosen, indices // block, axis=1) * block + indices % block
    return sums, indices // columns, indices % columns


def _block_size(columns: int, elements_per_result: float) -> int:
    """Returns the divisor of `columns` with which both sorts of `top_k_sums` have about the same size.

    Returns 1 if no divisor is close enough to that size, or blocks would be too small to help.
    """
    ideal = math.sqrt(elements_per_result)
    block = min((n for n in range(1, columns + 1) if columns % n == 0), key=lambda n: abs(math.log(n / ideal)))
    return block if ideal >= 4 and 0.5 < block / ideal < 2.0 else 1


def _take_rows(array: Shaped[Array, "B K *D"], chosen: Int[Array, "B C"]) -> Shaped[Array, "B C *D"]:
    return jax.vmap(lambda rows, index: rows[index])(array, chosen)
