"""Greedy search, beam search and sampling, compared with enumeration of all hypotheses over a tiny vocabulary."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.translation.search import IMPOSSIBLE, beam_search, greedy_search, sample, top_k_sums
from tests.helpers.search import (
    END,
    LENGTH,
    START,
    WIDE,
    WORDS,
    beam_search_by_lists,
    compiled_beam_search,
    compiled_greedy_search,
    config,
    constraints,
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
    own = constraints(max_lengths, minimum, prefixes)
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
    own = constraints([9] * 200, prefixes=((),) * 200)
    for alpha in (0.0, 0.6, 1.5):
        result = jax.device_get(compiled_beam_search(tables, own, beams=beams, alpha=alpha))
        for sentence, table in enumerate(tables):
            check_hypotheses(result, sentence, beam_search_by_lists(table, beams, alpha, limit=9)[1])


def test_best_hypothesis_finishes_after_two_others_by_hand():
    """a a </s> has probability 0.8 * 0.9 * 0.9 = 0.648; </s> with 0.2 and a </s> with 0.08 finish before it."""
    table = np.full((LENGTH, 5, 5), -1e9, np.float32)
    for position, probabilities in enumerate([(0.2, 0.8), (0.1, 0.9), (0.9, 0.1), (1.0, 0.0)]):
        with np.errstate(divide="ignore"):
            table[position, :, [END, 3]] = np.maximum(np.log(probabilities), -1e9)[:, None]
    own = constraints((LENGTH,), prefixes=((),))
    result = jax.device_get(compiled_beam_search(table[None], own, beams=2, alpha=0.0))
    assert result.tokens[0].tolist() == [[3, 3, END, 0], [END, 0, 0, 0]]
    np.testing.assert_allclose(np.exp(result.scores[0]), [0.648, 0.2], rtol=1e-5)


@pytest.mark.parametrize(
    ("search", "options", "initial_length"),
    [
        (beam_search, {"beams": 3}, 1),
        (sample, {"temperature": 1.0, "top_k": None, "top_p": None}, 2),
        (greedy_search, {}, LENGTH),
    ],
)
def test_results_do_not_depend_on_shrinking_batches_and_growing_states(search, options, initial_length):
    """22 sentences, of which 8 and then 2 remain, or more if the state is full, equal each sentence alone."""
    tables = random_tables(22, seed=1, scale=2)
    limits = np.array([1, 2, 4, 2, 1, 2, 3, 1, 1, 3, 1] * 2)
    shapes = set()

    def step(tokens, index, beam_history, state):  # as in the network, what belongs to a sentence is in the state
        tables, positions = state
        room = positions.shape[1]
        shapes.add((len(tokens), beam_history.shape[2], room))
        positions = positions.at[:, index].set(index + 1)
        nothing_lost = jnp.all(positions == jnp.where(jnp.arange(room) <= index, jnp.arange(room) + 1, 0))
        logits, _ = look_up(tokens, index, beam_history, tables)
        return jnp.where(nothing_lost, logits, jnp.nan), (tables, positions)

    def grow(state, length):
        return state[0], jnp.pad(state[1], ((0, 0), (0, length - state[1].shape[1])))

    @jax.jit
    def run(tables, max_lengths, keys):
        count = len(max_lengths)
        own = constraints([LENGTH] * count, prefixes=((),) * count)._replace(max_lengths=max_lengths)
        state = tables, jnp.zeros((count, initial_length), jnp.int32)
        task = config(own, 0.6)._replace(initial_room=initial_length, grow=grow)
        return search(step, state, task, **options, **({"keys": keys} if search is sample else {})).run()

    keys = jax.random.split(jax.random.key(3), (22, 2))
    alone = [run(tables[i : i + 1], limits[i : i + 1], keys[i : i + 1]) for i in range(22)]
    assert shapes == {(1, LENGTH, LENGTH)}
    shapes.clear()
    together = run(tables, limits, keys)
    assert shapes == {(22, initial_length, initial_length), (8, LENGTH, LENGTH), (2, LENGTH, LENGTH)}
    np.testing.assert_array_equal(together.tokens, np.concatenate([one.tokens for one in alone]))
    np.testing.assert_allclose(together.scores, np.concatenate([one.scores for one in alone]), rtol=1e-6)


def test_early_end_keeps_the_requested_hypotheses():
    """The best hypotheses are those of the complete search, after fewer steps: most hypotheses end early."""
    tables, steps = random_tables(40, 9, seed=2, scale=3), []
    tables[:, 3:, :, END] += 9

    def step(tokens, index, beam_history, tables):
        jax.debug.callback(lambda index: steps.append(int(index)), index)
        return look_up(tokens, index, beam_history, tables)

    @jax.jit
    def run(tables, alpha, num_hypotheses):
        task = config(constraints([9] * 40, prefixes=((),) * 40), alpha, 9)
        return beam_search(step, tables, task, beams=5, num_hypotheses=num_hypotheses).run()

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
        own = config(constraints())
        return sample(look_up, TABLES, own, keys=keys, temperature=temperature, top_k=top_k, top_p=top_p).run()

    result = jax.device_get(run(jax.random.split(jax.random.key(0), (3, NUM_SAMPLES)), temperature))
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
