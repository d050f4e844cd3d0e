"""Greedy search, beam search and sampling, compared with enumeration of all hypotheses over a tiny vocabulary."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.search import (
    IMPOSSIBLE,
    BeamSearch,
    Constraints,
    IndependentRows,
    Sampling,
    advance,
    top_k_sums,
)
from tests.helpers.search import (
    END,
    LENGTH,
    START,
    WIDE,
    WORDS,
    beam_search_by_lists,
    compiled_beam_search,
    compiled_greedy_search,
    constraints,
    finished,
    log_softmax,
    look_up,
    penalty,
    random_tables,
)

TABLES = random_tables(3, seed=0, scale=2)


def exhaustive(table, alpha):
    """Returns all hypotheses of a sentence as (score, tokens), best first."""
    log_probabilities = log_softmax(table)
    hypotheses = []
    for count in range(LENGTH):
        for words in itertools.product(WORDS, repeat=count):
            tokens, last, total = [*words, END], START, 0.0
            for index, token in enumerate(tokens):
                total += log_probabilities[index, last, token]
                last = token
            hypotheses.append((total / penalty(len(tokens), alpha), tokens))
    return sorted(hypotheses, reverse=True)


def check_hypotheses(result, sentence, expected):
    """Checks that the hypotheses of a sentence are exactly the expected (score, tokens)."""
    tokens, scores = result.tokens[sentence], result.scores[sentence]
    assert (scores > IMPOSSIBLE / 2).sum() == len(expected)
    np.testing.assert_allclose(scores[: len(expected)], [score for score, _ in expected], atol=1e-4)
    assert [[token for token in row if token] for row in tokens[: len(expected)].tolist()] == [
        words for _, words in expected
    ]


@pytest.mark.parametrize(
    ("max_lengths", "minimum", "prefixes", "alpha"),
    [
        ([LENGTH] * 3, 1, ([],) * 3, 0.6),
        ([2, 4, 3], 1, ([],) * 3, 1.5),
        ([LENGTH] * 3, LENGTH, ([],) * 3, 0.6),
        ([LENGTH, 3, 4], 2, ([3], [], [4, 2]), 0.6),
    ],
)
def test_wide_beam_finds_all_that_is_allowed_and_greedy_search_the_likeliest_tokens(
    max_lengths, minimum, prefixes, alpha
):
    own = constraints(max_lengths, minimum, prefixes, WIDE)
    beam = jax.device_get(compiled_beam_search(TABLES, own, beams=WIDE, alpha=alpha))
    greedy = compiled_greedy_search(TABLES, own, alpha=alpha).tokens.tolist()
    for sentence, (limit, prefix) in enumerate(zip(max_lengths, prefixes, strict=True)):
        expected = [
            (score, tokens)
            for score, tokens in exhaustive(TABLES[sentence], alpha)
            if minimum <= len(tokens) <= limit and tokens[: len(prefix)] == prefix
        ]
        check_hypotheses(beam, sentence, expected)
        limits = {"limit": limit, "minimum": minimum, "prefix": prefix}
        _, [(_, likeliest)] = beam_search_by_lists(TABLES[sentence], 1, alpha, **limits)
        assert [token for token in greedy[sentence][0] if token] == likeliest


@pytest.mark.parametrize("beams", [2, 4])
def test_narrow_beams_end_exactly_when_nothing_can_overtake(beams):
    """Of 200 sentences, many have K finished hypotheses long before the best one finishes."""
    tables = random_tables(200, 9, seed=7, scale=3)
    own = constraints([9] * 200, prefixes=((),) * 200, num_hypotheses=beams)
    for alpha, form in ((0.0, "wu"), (0.6, "wu"), (1.5, "wu"), (1.0, "length")):
        offset = DecodingOptions(length_penalty_form=form).penalty_offset
        result = jax.device_get(compiled_beam_search(tables, own, beams=beams, alpha=alpha, offset=offset))
        for sentence, table in enumerate(tables):
            check_hypotheses(result, sentence, beam_search_by_lists(table, beams, alpha, form, limit=9)[1])


def test_best_hypothesis_finishes_after_two_others_by_hand():
    """a a </s> has probability 0.8 * 0.9 * 0.9 = 0.648; </s> with 0.2 and a </s> with 0.08 finish before it."""
    table = np.full((LENGTH, 5, 5), -1e9, np.float32)
    for position, probabilities in enumerate([(0.2, 0.8), (0.1, 0.9), (0.9, 0.1), (1.0, 0.0)]):
        with np.errstate(divide="ignore"):
            table[position, :, [END, 3]] = np.maximum(np.log(probabilities), -1e9)[:, None]
    own = constraints((LENGTH,), prefixes=((),), num_hypotheses=2)
    result = jax.device_get(compiled_beam_search(table[None], own, beams=2, alpha=0.0))
    assert result.tokens[0].tolist() == [[3, 3, END, 0], [END, 0, 0, 0]]
    np.testing.assert_allclose(np.exp(result.scores[0]), [0.648, 0.2], rtol=1e-5)


SEARCHES = {
    "beam": lambda step: BeamSearch(step, 3, START, END, 0.6),
    "greedy": lambda step: IndependentRows(step, 1, START, END, 0.6),
    "sampling": lambda step: IndependentRows(step, 2, START, END, 0.6, Sampling(1.0)),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_results_do_not_depend_on_when_sentences_begin(name):
    """22 sentences in four rows: whenever one is done, the next joins, and finds what it finds alone.

    The step writes into the ring as a network does, and finds there what belongs to the sentence and nothing else.
    """
    tables = random_tables(22, seed=1, scale=2)
    limits = np.array([1, 2, 4, 2, 1, 2, 3, 1, 1, 3, 1] * 2)
    keys = jax.random.key_data(jax.random.split(jax.random.key(3), (22, 2)))

    def step(tokens, positions, slot, beam_history, state):
        tables, written = state
        written = written.at[:, slot].set(positions)
        slots = (slot - positions[:, None] + jnp.arange(LENGTH)) % LENGTH
        found = jnp.take_along_axis(written, slots, axis=1)
        is_own = jnp.where(jnp.arange(LENGTH) <= positions[:, None], found == jnp.arange(LENGTH), True)
        logits, _ = look_up(tokens, jnp.minimum(positions, LENGTH - 1), slot, beam_history, tables)
        return jnp.where(jnp.all(is_own, axis=1)[:, None, None], logits, jnp.nan), (tables, written)

    search = SEARCHES[name](step)

    @jax.jit
    def begun(sentences):
        own = constraints([LENGTH] * 22, prefixes=((),) * 22, num_hypotheses=2 if name != "greedy" else 1)
        own = Constraints(*(jnp.asarray(array)[sentences] for array in own._replace(max_lengths=limits)))
        state = jnp.asarray(tables)[sentences], jnp.full((len(sentences), LENGTH), -1)
        return search.begin(own, state, LENGTH, keys[sentences] if name == "sampling" else None)

    @jax.jit
    def advanced(progress, steps):
        progress = advance(search, progress, jnp.ones(len(progress.begun), bool), steps, 0)
        return progress, search.done(progress), search.result(progress)

    alone = [advanced(begun(np.array([sentence])), LENGTH)[2] for sentence in range(22)]
    rows, waiting, found = np.arange(4), list(range(4, 22)), {}
    progress = begun(rows)
    while len(found) < 22:
        progress, done, result = advanced(progress, 1)
        for row in np.flatnonzero(done):
            found.setdefault(int(rows[row]), jax.tree.map(lambda array, row=row: array[row], result))
            if waiting:
                rows[row] = waiting.pop(0)
                new = begun(rows)._replace(step=progress.step)
                new = new._replace(begun=jnp.full_like(progress.begun, progress.step))
                progress = jax.tree.map(
                    lambda old, own, row=row: old.at[row].set(own[row]) if old.ndim else old, progress, new
                )
    for sentence, hypotheses in enumerate(alone):
        np.testing.assert_array_equal(found[sentence].tokens, hypotheses.tokens[0])
        np.testing.assert_allclose(found[sentence].scores, hypotheses.scores[0], rtol=1e-6)


def test_early_end_keeps_the_requested_hypotheses():
    """The best hypotheses are those of the complete search, after fewer steps: most hypotheses end early."""
    tables, steps = random_tables(40, 9, seed=2, scale=3), []
    tables[:, 3:, :, END] += 9

    def step(tokens, positions, slot, beam_history, tables):
        jax.debug.callback(lambda slot: steps.append(int(slot)), slot)
        return look_up(tokens, positions, slot, beam_history, tables)

    @jax.jit
    def run(tables, alpha, num_hypotheses):
        own = constraints([9] * 40, prefixes=((),) * 40)._replace(num_hypotheses=jnp.full(40, num_hypotheses))
        return finished(BeamSearch(step, 5, START, END, alpha), own, tables, 9)

    for alpha in (0.0, 1.5):
        complete, *fewer = (jax.block_until_ready(run(tables, alpha, count)) for count in (5, 2, 1))
        jax.effects_barrier()
        ends = [index for index, following in itertools.pairwise([*steps, 0]) if following == 0]
        assert ends[2] < ends[0]
        for count, result in zip((2, 1), fewer, strict=True):
            np.testing.assert_array_equal(result.tokens[:, :count], complete.tokens[:, :count])
            np.testing.assert_allclose(result.scores[:, :count], complete.scores[:, :count], rtol=1e-6)
        steps.clear()


@pytest.mark.parametrize(("size", "count"), [(40, 3), (5000, 10), (5003, 10), (4999, 1)])
def test_top_k_sums_equal_those_of_numpy(size, count):
    """Of equal sums, the first comes first."""
    generator = np.random.default_rng(0)
    x = generator.integers(-9 if size == 5003 else -(10**6), 9, (3, 2, size)).astype(np.float32)
    x[0, 0] = -np.inf
    x[0, 1, 3:] = -np.inf
    offsets = generator.integers(-5, 5, (3, 2)).astype(np.float32)
    sums = (x + offsets[..., None]).reshape(3, -1)
    expected = np.argsort(-sums, axis=1, kind="stable")[:, :count]
    best, rows, columns = jax.device_get(jax.jit(functools.partial(top_k_sums, count=count))(x, offsets))
    np.testing.assert_array_equal(rows * size + columns, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(sums, expected, axis=1))


NUM_SAMPLES = 4000


def draw(temperature, top_k, top_p):
    """Returns the samples of each sentence as tuples of tokens, and their scores."""

    @jax.jit
    def run(keys, temperature):
        sampling = Sampling(temperature, top_k, top_p)
        search = IndependentRows(look_up, NUM_SAMPLES, START, END, sampling=sampling)
        return finished(search, constraints(), jnp.asarray(TABLES), LENGTH, keys)

    keys = jax.random.split(jax.random.key(0), (3, NUM_SAMPLES))
    result = jax.device_get(run(jax.random.key_data(keys), temperature))
    samples = [[tuple(token for token in row if token) for row in rows] for rows in result.tokens.tolist()]
    return samples, result.scores


def probabilities(table, temperature, top_k, top_p):
    """Returns each hypothesis's probability."""
    result = {}
    for _, tokens in exhaustive(table, 0.0):
        last, probability = START, 1.0
        for index, token in enumerate(tokens):
            if index < LENGTH - 1:  # at the last position only the end is possible
                weights = np.exp(table[index, last].astype(np.float64) / temperature)
                likeliest = np.argsort(-weights)[:top_k]
                before = np.cumsum(weights[likeliest]) - weights[likeliest]
                kept = likeliest[before < top_p * weights[likeliest].sum()]
                probability *= weights[token] / weights[kept].sum() if token in kept else 0.0
            last = token
        result[tuple(tokens)] = probability
    return result


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.5, None, None), (2.0, 2, 0.7), (2.0, 50, 0.7), (2.0, None, 1.0)]
)
def test_samples_follow_the_exact_distribution(temperature, top_k, top_p):
    """The counts of all hypotheses are within 4.5 standard deviations, and 2, of what is expected."""
    samples, scores = draw(temperature, top_k, top_p)
    for sentence in range(3):
        exact = probabilities(TABLES[sentence], temperature, top_k, top_p or 1.0)
        counts = collections.Counter(samples[sentence])
        assert set(counts) <= {tokens for tokens, probability in exact.items() if probability > 0}
        for tokens, probability in exact.items():
            deviation = np.sqrt(NUM_SAMPLES * probability * (1 - probability))
            assert abs(counts[tokens] - NUM_SAMPLES * probability) <= 4.5 * deviation + 2
        score_of = {tuple(tokens): score for score, tokens in exhaustive(TABLES[sentence], 0.0)}
        np.testing.assert_allclose(scores[sentence], [score_of[tokens] for tokens in samples[sentence]], atol=1e-4)
        assert (np.diff(scores[sentence]) <= 0).all()  # best first
