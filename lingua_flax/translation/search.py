"""Greedy search, beam search and sampling, independent of any model: they only need the logits of the next tokens.

B sentences, K beams or samples, V vocabulary, R number of positions for which a batch has room.

A batch is searched in steps, at each of which every sentence gets one position. Its sentences may have begun at
different steps: all write into the same slot of a ring of R slots, so that position p of a sentence that began at step
s is in slot (s + p) % R, and no sentence may be longer than R. Slots of their own would need a scatter at every step,
which is slow on CPUs.

`step(tokens, positions, slot, beam_history, state)` receives the tokens [B, K] that precede the positions [B]. It
returns the logits [B, K, V] for these positions and the new state, a pytree of arrays [B, ...]. Hypotheses can change
their row k from one position to the next, but the state is never reordered, because that would copy all of it. Instead,
beam_history [B, K, R] holds the row that each hypothesis occupied when each slot was written.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, Shaped, UInt32

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
IMPOSSIBLE = -1e30  # a log-probability that remains finite in sums, where minus infinity could produce NaN


class Constraints(NamedTuple):
    """Constraints on hypotheses, given for each sentence so that no result depends on the rest of the batch.

    Lengths count the end token, and max_lengths are at most R. The hypotheses begin with the prefixes, which are padded
    with zeros; P may be 0. `num_hypotheses` of a sentence are needed, at most K: the best of them are certain.
    """

    max_lengths: Int[Array, "B"]
    min_lengths: Int[Array, "B"]
    num_hypotheses: Int[Array, "B"]
    prefixes: Int[Array, "B P"]


class Hypotheses(NamedTuple):
    """The best hypotheses of each sentence, best first: tokens ending with the end token and padded with zeros.

    Scores are log-probabilities divided by the length penalty, and IMPOSSIBLE where a sentence has fewer than K.
    """

    tokens: Int[Array, "B K R"]
    scores: Float[Array, "B K"]


class Continuations(NamedTuple):
    """The likeliest continuations of the hypotheses of each sentence, best first."""

    scores: Float[Array, "B C"]  # log-probabilities of the continued hypotheses
    origins: Int[Array, "B C"]  # the rows that they continue
    tokens: Int[Array, "B C"]


class SearchState(NamedTuple):
    """How far the search of a batch has come."""

    step: Int[Array, ""]
    begun: Int[Array, "B"]  # the step at which each sentence began
    constraints: Constraints
    last: Int[Array, "B K"]
    tokens: Int[Array, "B K R"]  # by slot
    scores: Float[Array, "B K"]  # log-probabilities
    state: Any
    # Of hypotheses that stay in their rows:
    ended: Any = None  # Bool[Array, "B K"]
    keys: Any = None  # of samples, UInt32[Array, "B K 2"]
    # Of beam search:
    finished: Any = None  # Hypotheses, by slot
    beam_history: Any = None  # Int[Array, "B K R"]
    considered: Any = None  # Continuations at the last step

    @property
    def room(self) -> int:
        """R."""
        return self.tokens.shape[2]

    @property
    def positions(self) -> Int[Array, "B"]:
        """The number of positions of each sentence that have been searched."""
        return self.step - self.begun

    @property
    def slot(self) -> Int[Array, ""]:
        """Where this step is written."""
        return self.step % self.room

    def with_room(self, room: int) -> "SearchState":
        """Returns the progress with room for more positions, if no slot was used twice, but for that in the state."""
        new = ((0, 0), (0, 0), (0, room - self.room))
        tokens = jnp.pad(self.tokens, new)
        if self.finished is None:
            return self._replace(tokens=tokens)
        finished = self.finished._replace(tokens=jnp.pad(self.finished.tokens, new))
        return self._replace(tokens=tokens, finished=finished, beam_history=jnp.pad(self.beam_history, new))

    def from_begin(self, tokens: Int[Array, "B K R"]) -> Int[Array, "B K R"]:
        """Returns tokens in the order of positions, given in that of slots."""
        slots = (self.begun[:, None] + jnp.arange(self.room)) % self.room
        return jnp.take_along_axis(tokens, slots[:, None], axis=2)


def length_penalty(
    length: Num[Array, "*B"], alpha: float | Float[Array, ""], offset: float | Float[Array, ""] = 5.0
) -> Float[Array, "*B"]:
    """Returns ((offset + length) / (offset + 1))**alpha: of Wu et al. (2016, equation 14), or with 0 length**alpha."""
    return ((offset + length) / (offset + 1.0)) ** alpha


class Sampling(NamedTuple):
    """How samples are drawn; each depends only on its key and the logits.

    Each token is drawn with a probability proportional to its probability to the power of 1 / temperature; if given,
    only from the `top_k` likeliest tokens (Fan et al. 2018), and of these only from the likeliest that together reach
    the probability `top_p` (Holtzman et al. 2020). The scores are those of the network, whatever the temperature.
    """

    temperature: float | Float[Array, ""]
    top_k: int | None = None
    top_p: float | Float[Array, ""] | None = None


class IndependentRows(NamedTuple):
    """Greedy search, which chooses the likeliest token at each position, or sampling; hypotheses stay in their rows."""

    step: Step
    rows: int  # K
    start_token: int
    end_token: int
    alpha: float | Float[Array, ""] = 0.0  # of the length penalty, not negative
    sampling: Sampling | None = None
    offset: float | Float[Array, ""] = 5.0  # of the length penalty

    def begin(
        self, constraints: Constraints, state: Any, room: int, keys: UInt32[Array, "B K 2"] | None = None
    ) -> SearchState:
        """Returns the progress before the first position."""
        progress = _begun(constraints, state, self.rows, room, self.start_token)
        return progress._replace(ended=jnp.zeros(progress.last.shape, bool), keys=keys)

    def next(self, progress: SearchState) -> SearchState:
        """Searches one position of each sentence."""
        batch, rows, room = progress.tokens.shape
        own_rows = jnp.broadcast_to(jnp.arange(rows)[None, :, None], (batch, rows, room))
        logits, state = self.step(progress.last, progress.positions, progress.slot, own_rows, progress.state)
        token, gained = (self._likeliest if self.sampling is None else self._drawn)(logits, progress)
        token = jnp.where(progress.ended, 0, token)
        tokens = _written(progress.tokens, token, progress.slot)
        return progress._replace(
            step=progress.step + 1,
            last=token,
            tokens=jnp.where(progress.ended[..., None], progress.tokens, tokens),
            scores=progress.scores + jnp.where(progress.ended, 0.0, gained),
            ended=progress.ended | (token == self.end_token),
            state=state,
        )

    def done(self, progress: SearchState) -> Bool[Array, "B"]:
        """Returns which sentences have ended."""
        return jnp.all(progress.ended, axis=1)

    def result(self, progress: SearchState) -> Hypotheses:
        """Returns the hypotheses, best first."""
        lengths = jnp.sum(progress.tokens != 0, axis=-1)
        penalties = length_penalty(jnp.maximum(lengths, 1), self.alpha, self.offset)
        scores, order = jax.lax.top_k(progress.scores / penalties, lengths.shape[1])
        return Hypotheses(_take_rows(progress.from_begin(progress.tokens), order), scores)

    def _likeliest(
        self, logits: Float[Array, "B 1 V"], progress: SearchState
    ) -> tuple[Int[Array, "B 1"], Float[Array, "B 1"]]:
        """Returns the likeliest tokens and their log-probabilities; XLA's argmax is slower than the logits."""
        nothing = jnp.zeros(logits.shape[:2], jnp.float32)
        scores, _, tokens = _best_continuations(
            nothing, logits, progress.positions, progress.constraints, count=1, end=self.end_token
        )
        return tokens, scores

    def _drawn(
        self, logits: Float[Array, "B K V"], progress: SearchState
    ) -> tuple[Int[Array, "B K"], Float[Array, "B K"]]:
        """Returns samples and their log-probabilities."""
        assert self.sampling

        def numbers(key: jax.Array, position: jax.Array) -> jax.Array:
            return jax.random.uniform(jax.random.fold_in(key, position), (2,))

        allowed = _mask_forbidden(logits, progress.positions, progress.constraints, self.end_token)
        kept = _keep_likeliest(allowed / self.sampling.temperature, self.sampling.top_k, self.sampling.top_p)
        keys = jax.random.wrap_key_data(progress.keys)
        tokens = _sampled(kept, jax.vmap(jax.vmap(numbers, (0, None)))(keys, progress.positions))
        chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
        return tokens, chosen - jax.nn.logsumexp(logits, axis=-1)


class BeamSearch(NamedTuple):
    """Beam search with a length penalty.

    Of the 2 K likeliest continuations of a sentence, those among the first K that end it become finished hypotheses,
    and the first K that do not end it stay in the beam. At the limit of a sentence every hypothesis must end. A
    sentence is done when nothing in the beam can still become one of the hypotheses that are needed. As many beams as
    there are hypotheses are equivalent to exhaustive search; a single one is greedy search.
    """

    step: Step
    beams: int  # K
    start_token: int
    end_token: int
    alpha: float | Float[Array, ""] = 0.0  # of the length penalty, not negative
    offset: float | Float[Array, ""] = 5.0

    def begin(self, constraints: Constraints, state: Any, room: int, keys: Any = None) -> SearchState:
        """Returns the progress before the first position."""
        progress = _begun(constraints, state, self.beams, room, self.start_token)
        none = jnp.full_like(progress.scores, IMPOSSIBLE)
        nothing = jnp.zeros((len(none), 2 * self.beams), jnp.int32)
        return progress._replace(
            scores=none.at[:, 0].set(0.0),  # all beams start with the same hypothesis, so only the first one counts
            finished=Hypotheses(progress.tokens, none),
            beam_history=progress.tokens,
            considered=Continuations(nothing.astype(jnp.float32), nothing, nothing),
        )

    def next(self, beam: SearchState) -> SearchState:
        """Searches one position of each sentence."""
        own_rows = jnp.broadcast_to(jnp.arange(self.beams), beam.last.shape)
        beam_history = _written(beam.beam_history, own_rows, beam.slot)
        logits, state = self.step(beam.last, beam.positions, beam.slot, beam_history, beam.state)
        considered = _best_continuations(
            beam.scores, logits, beam.positions, beam.constraints, count=2 * self.beams, end=self.end_token
        )
        scores, origins, tokens = considered
        ends = tokens == self.end_token
        sequences = _written(_take_rows(beam.tokens, origins), tokens, beam.slot)
        is_finished = ends & (scores > IMPOSSIBLE / 2) & ~self.done(beam)[:, None]
        penalties = length_penalty(beam.positions + 1, self.alpha, self.offset)[:, None]
        finished_scores = jnp.where(is_finished, scores / penalties, IMPOSSIBLE)
        all_scores = jnp.concatenate([beam.finished.scores, finished_scores[:, : self.beams]], axis=1)
        all_tokens = jnp.concatenate([beam.finished.tokens, sequences[:, : self.beams]], axis=1)
        best_scores, best = jax.lax.top_k(all_scores, self.beams)
        alive_scores, chosen = jax.lax.top_k(jnp.where(ends, 2 * IMPOSSIBLE, scores), self.beams)
        origins = jnp.take_along_axis(origins, chosen, axis=1)
        return beam._replace(
            step=beam.step + 1,
            last=jnp.take_along_axis(tokens, chosen, axis=1),
            tokens=_take_rows(sequences, chosen),
            scores=jnp.maximum(alive_scores, IMPOSSIBLE),
            finished=Hypotheses(_take_rows(all_tokens, best), best_scores),
            beam_history=_take_rows(beam_history, origins),
            considered=considered,
            state=state,
        )

    def done(self, beam: SearchState) -> Bool[Array, "B"]:
        """Returns which sentences have the hypotheses that are needed.

        No hypothesis that is still to finish can score more than the best log-probability in the beam, which can only
        fall, divided by the length penalty at the limit, which is the largest. That K hypotheses have finished is no
        reason to end: the best one may still be in the beam.
        """
        limits, _, needed, _ = beam.constraints
        best_possible = beam.scores[:, 0] / length_penalty(limits, self.alpha, self.offset)
        worst_needed = jnp.take_along_axis(beam.finished.scores, needed[:, None] - 1, axis=1)[:, 0]
        nothing_better = worst_needed >= (IMPOSSIBLE / 2 if self.beams == 1 else best_possible)
        nothing_alive = beam.scores[:, 0] < IMPOSSIBLE / 2
        return nothing_better | nothing_alive | (beam.positions >= limits)

    def result(self, beam: SearchState) -> Hypotheses:
        """Returns the hypotheses that have finished."""
        return Hypotheses(beam.from_begin(beam.finished.tokens), beam.finished.scores)


Search = IndependentRows | BeamSearch


def advance(
    search: Search, progress: SearchState, active: Bool[Array, "B"], max_steps: Any, enough: Any
) -> SearchState:
    """Searches up to `max_steps` positions, until all but `enough` active sentences are done or one needs more room."""
    last_step = progress.step + max_steps

    def should_continue(progress: SearchState) -> jax.Array:
        is_open = active & ~search.done(progress)
        has_room = jnp.all(~is_open | (progress.positions < progress.room))
        return (jnp.sum(is_open) > enough) & (progress.step < last_step) & has_room

    return jax.lax.while_loop(should_continue, search.next, progress)


def _begun(constraints: Constraints, state: Any, rows: int, room: int, start_token: int) -> SearchState:
    batch = len(constraints.max_lengths)
    return SearchState(
        step=jnp.int32(0),
        begun=jnp.zeros(batch, jnp.int32),
        constraints=constraints,
        last=jnp.full((batch, rows), start_token, jnp.int32),
        tokens=jnp.zeros((batch, rows, room), jnp.int32),
        scores=jnp.zeros((batch, rows), jnp.float32),
        state=state,
    )


def _written(by_slot: Int[Array, "B K R"], now: Int[Array, "B K"], slot: Int[Array, ""]) -> Int[Array, "B K R"]:
    return jax.lax.dynamic_update_slice_in_dim(by_slot, now[:, :, None], slot, axis=2)


def _sampled(logits: Float[Array, "B K V"], uniform: Float[Array, "B K 2"]) -> Int[Array, "B K"]:
    """Returns tokens with the probabilities of a softmax, given random numbers from 0 to 1.

    A block of tokens is drawn first, then one of its tokens. A Gumbel variate for each token took ten times as long.
    """
    columns = logits.shape[-1]
    block = math.isqrt(columns - 1) + 1
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    blocks = jnp.pad(weights, ((0, 0), (0, 0), (0, -columns % block))).reshape(*logits.shape[:2], -1, block)
    chosen = _index_at(uniform[..., 0], jnp.sum(blocks, axis=-1))
    within = jnp.take_along_axis(blocks, chosen[..., None, None], axis=2)[..., 0, :]
    return chosen * block + _index_at(uniform[..., 1], within)


def _index_at(share: Float[Array, "B K"], weights: Float[Array, "B K W"]) -> Int[Array, "B K"]:
    """Returns the first indices up to which the weights have more than these shares of their sums."""
    sums = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(sums > share[..., None] * sums[..., -1:], axis=-1)


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


def _forced_token(positions: Int[Array, "B"], constraints: Constraints, end: int) -> Int[Array, "B"]:
    """Returns the only token allowed at a position by a prefix or a limit, or 0 if none is forced."""
    forced = jnp.where(positions == constraints.max_lengths - 1, end, 0)
    if longest := constraints.prefixes.shape[1]:
        places = jnp.minimum(positions, longest - 1)[:, None]
        prefix = jnp.take_along_axis(constraints.prefixes, places, axis=1)[:, 0]
        prefix = jnp.where(positions < longest, prefix, 0)
        forced = jnp.where(prefix > 0, prefix, forced)
    return forced


def _mask_forbidden(
    logits: Float[Array, "B K V"], positions: Int[Array, "B"], constraints: Constraints, end: int
) -> Float[Array, "B K V"]:
    """Returns logits in which all tokens that are not allowed at these positions are IMPOSSIBLE."""
    token = jnp.arange(logits.shape[-1])
    forced = _forced_token(positions, constraints, end)[:, None]
    too_early = (positions < constraints.min_lengths - 1)[:, None]
    allowed = jnp.where(forced > 0, token == forced, ~too_early | (token != end))
    return jnp.where(allowed[:, None], logits, IMPOSSIBLE)


def _best_continuations(
    scores: Float[Array, "B K"],
    logits: Float[Array, "B K V"],
    positions: Int[Array, "B"],
    constraints: Constraints,
    *,
    count: int,
    end: int,
) -> Continuations:
    """Returns the `count` best continuations of each sentence.

    The constraints are applied to the few best candidates only: as masks they would be passes over all logits.
    """
    beams = logits.shape[1]
    offsets = scores - jax.nn.logsumexp(logits, axis=-1)
    # One more candidate for each beam, since its end token may be ruled out.
    best, origins, tokens = top_k_sums(logits, offsets, count + beams)
    too_early = (positions < constraints.min_lengths - 1)[:, None]
    best = jnp.where(too_early & (tokens == end), IMPOSSIBLE, best)
    forced = _forced_token(positions, constraints, end)[:, None]
    forced_scores = jnp.take_along_axis(logits, forced[:, None], axis=-1)[..., 0] + offsets
    forced_scores = jnp.pad(forced_scores, ((0, 0), (0, count)), constant_values=2 * IMPOSSIBLE)
    best, tokens = jnp.where(forced > 0, forced_scores, best), jnp.where(forced > 0, forced, tokens)
    origins = jnp.where(forced > 0, jnp.minimum(jnp.arange(count + beams), beams - 1), origins)
    best, order = jax.lax.top_k(best, count)
    return Continuations(best, jnp.take_along_axis(origins, order, axis=1), jnp.take_along_axis(tokens, order, axis=1))


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
