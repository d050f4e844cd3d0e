"""Greedy search, beam search and sampling, compared with enumeration of all hypotheses over a tiny vocabulary."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.translation.search import (
    IMPOSSIBLE,
    Constraints,
    SearchConfig,
    beam_search,
    greedy_search,
    length_penalty,
    sample,
    top_k_sums,
)

END, START, LENGTH = 1, 2, 4
WORDS = [2, 3, 4]  # the tokens that do not end a sentence; 0 is padding, and impossible
ALL = sum(len(WORDS) ** n for n in range(LENGTH))  # number of hypotheses of at most LENGTH tokens, end token included
WIDE = ALL + 7  # beams


def constraints(max_lengths=(LENGTH,) * 3, min_length=1, prefixes=((),) * 3):
    room = max(map(len, prefixes))
    padded = [[*prefix, *[0] * (room - len(prefix))] for prefix in prefixes]
    count = len(max_lengths)
    min_lengths = np.full(count, min_length, np.int32)
    return Constraints(np.array(max_lengths, np.int32), min_lengths, np.array(padded, np.int32).reshape(count, room))


FREE = constraints()


def random_tables(sentences, length=LENGTH, *, seed, scale):
    """Returns logits of the next token for each sentence, position and last token."""
    logits = np.random.default_rng(seed).normal(size=(sentences, length, 5, 5)).astype(np.float32) * scale
    logits[..., 0] = -np.inf
    return logits


TABLES = random_tables(3, seed=0, scale=2)


def look_up(tokens, index, beam_history, tables):
    """The step of a search: the state, which it does not change, is the tables."""
    return jax.vmap(lambda table, last: table[index][last])(tables, tokens), tables


def config(own, alpha=0.0, length=LENGTH):
    return SearchConfig(Constraints(*map(jnp.asarray, own)), length, START, END, alpha)


@functools.partial(jax.jit, static_argnames=("beams", "alpha"))
def compiled_beam_search(tables, own, *, beams, alpha):
    return beam_search(look_up, tables, config(own, alpha, tables.shape[1]), beams=beams).run()


@functools.partial(jax.jit, static_argnames="alpha")
def compiled_greedy_search(tables, own, *, alpha):
    return greedy_search(look_up, tables, config(own, alpha)).run()


@functools.partial(jax.jit, static_argnames=("top_k", "top_p"))
def compiled_sample(tables, own, keys, temperature, *, top_k=None, top_p=None):
    return sample(look_up, tables, config(own), keys=keys, temperature=temperature, top_k=top_k, top_p=top_p).run()


def run_beam_search(own=FREE, *, beams, alpha=0.6):
    return jax.device_get(compiled_beam_search(TABLES, own, beams=beams, alpha=alpha))


def run_greedy_search(own=FREE, *, alpha=0.6):
    return jax.device_get(compiled_greedy_search(TABLES, own, alpha=alpha))


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


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


def beam_search_by_lists(table, beams, alpha):
    """Returns the hypotheses that a beam search of a sentence finds as (score, tokens), best first.

    It ends when nothing alive can overtake, at any of the lengths that are left.
    """
    log_probabilities, length = log_softmax(table), len(table)
    alive, finished = [(0.0, [START])], []
    for index in range(length):
        candidates = [
            (score + log_probabilities[index, tokens[-1], token], [*tokens, token])
            for score, tokens in alive
            for token in ([END] if index == length - 1 else [END, *WORDS])
        ]
        best = sorted(candidates, reverse=True)[: 2 * beams]
        ended = [(score / penalty(index + 1, alpha), tokens[1:]) for score, tokens in best[:beams] if tokens[-1] == END]
        finished = sorted(finished + ended, reverse=True)[:beams]
        alive = [candidate for candidate in best if candidate[1][-1] != END][:beams]
        reachable = [score / penalty(n, alpha) for score, _ in alive for n in range(index + 2, length + 1)]
        if len(finished) == beams and finished[-1][0] >= max(reachable, default=-np.inf):
            break
    return finished


def greedy_by_loop(table, limit=LENGTH):
    """Returns the tokens that are likeliest one after another."""
    last, tokens = START, []
    while last != END:
        last = END if len(tokens) == limit - 1 else int(table[len(tokens), last].argmax())
        tokens.append(last)
    return tokens


def check_hypotheses(result, sentence, expected):
    """Checks that the hypotheses of a sentence are exactly the expected (score, tokens)."""
    tokens, scores = result.tokens[sentence], result.scores[sentence]
    assert (scores > IMPOSSIBLE / 2).sum() == len(expected)
    np.testing.assert_allclose(scores[: len(expected)], [score for score, _ in expected], atol=1e-4)
    assert [[token for token in row if token] for row in tokens[: len(expected)].tolist()] == [
        words for _, words in expected
    ]


@pytest.mark.parametrize("alpha", [0.6, 1.5])
def test_beam_wider_than_the_space_equals_exhaustive_search(alpha):
    result = run_beam_search(beams=WIDE, alpha=alpha)
    for sentence in range(3):
        check_hypotheses(result, sentence, exhaustive(TABLES[sentence], alpha))


@pytest.mark.parametrize("beams", [2, 5])
def test_narrow_beams_equal_a_beam_search_by_lists(beams):
    result = run_beam_search(beams=beams)
    for sentence in range(3):
        check_hypotheses(result, sentence, beam_search_by_lists(TABLES[sentence], beams, 0.6))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beams", [2, 4])
def test_search_ends_exactly_when_nothing_can_overtake(beams, alpha):
    """Of 200 sentences, many have K finished hypotheses long before the best one finishes."""
    tables = random_tables(200, 9, seed=7, scale=3)
    own = Constraints(np.full(200, 9), np.ones(200, np.int32), np.zeros((200, 0), np.int32))
    result = jax.device_get(compiled_beam_search(tables, own, beams=beams, alpha=alpha))
    for sentence, table in enumerate(tables):
        check_hypotheses(result, sentence, beam_search_by_lists(table, beams, alpha))


def test_best_hypothesis_finishes_after_two_others_by_hand():
    """a a </s> has probability 0.8 * 0.9 * 0.9 = 0.648; </s> with 0.2 and a </s> with 0.08 finish before it."""
    table = np.full((LENGTH, 5, 5), -1e9, np.float32)
    for position, probabilities in enumerate([(0.2, 0.8), (0.1, 0.9), (0.9, 0.1), (1.0, 0.0)]):
        with np.errstate(divide="ignore"):
            table[position, :, [END, 3]] = np.maximum(np.log(probabilities), -1e9)[:, None]
    result = jax.device_get(
        compiled_beam_search(table[None], constraints((LENGTH,), prefixes=((),)), beams=2, alpha=0.0)
    )
    assert result.tokens[0].tolist() == [[3, 3, END, 0], [END, 0, 0, 0]]
    np.testing.assert_allclose(np.exp(result.scores[0]), [0.648, 0.2], rtol=1e-5)


def test_greedy_search_equals_a_loop():
    greedy = run_greedy_search()
    for sentence in range(3):
        assert [token for token in greedy.tokens[sentence, 0] if token] == greedy_by_loop(TABLES[sentence])


def test_each_sentence_has_its_own_maximum_length():
    limits = [2, 4, 3]
    beam = run_beam_search(constraints(limits), beams=WIDE)
    greedy = run_greedy_search(constraints(limits))
    for sentence, limit in enumerate(limits):
        expected = [each for each in exhaustive(TABLES[sentence], 0.6) if len(each[1]) <= limit]
        check_hypotheses(beam, sentence, expected)
        assert [token for token in greedy.tokens[sentence, 0] if token] == greedy_by_loop(TABLES[sentence], limit)


@pytest.mark.parametrize("minimum", [2, 3, LENGTH])
def test_minimum_length_leaves_exactly_the_longer_hypotheses(minimum):
    result = run_beam_search(constraints(min_length=minimum), beams=WIDE)
    greedy = run_greedy_search(constraints(min_length=minimum))
    for sentence in range(3):
        expected = [each for each in exhaustive(TABLES[sentence], 0.6) if len(each[1]) >= minimum]
        check_hypotheses(result, sentence, expected)
        assert np.count_nonzero(greedy.tokens[sentence]) >= minimum


def test_prefix_leaves_exactly_the_hypotheses_that_begin_with_it():
    prefixes = ([3], [], [4, 2])
    result = run_beam_search(constraints(prefixes=prefixes), beams=WIDE)
    greedy = run_greedy_search(constraints(prefixes=prefixes))
    for sentence, prefix in enumerate(prefixes):
        expected = [each for each in exhaustive(TABLES[sentence], 0.6) if each[1][: len(prefix)] == prefix]
        check_hypotheses(result, sentence, expected)
        assert greedy.tokens[sentence, 0, : len(prefix)].tolist() == prefix


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
        own = Constraints(max_lengths, jnp.ones_like(max_lengths), jnp.zeros((len(max_lengths), 0), jnp.int32))
        state = tables, jnp.zeros((len(tables), initial_length), jnp.int32)
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


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_early_end_keeps_the_requested_hypotheses(alpha):
    """The best hypotheses are those of the complete search, after fewer steps: most hypotheses end early."""
    tables, steps = random_tables(40, 9, seed=2, scale=3), []
    tables[:, 3:, :, END] += 9
    own = constraints([9] * 40, prefixes=((),) * 40)

    def step(tokens, index, beam_history, tables):
        jax.debug.callback(lambda index: steps.append(int(index)), index)
        return look_up(tokens, index, beam_history, tables)

    @jax.jit
    def run(tables, num_hypotheses):
        return beam_search(step, tables, config(own, alpha, 9), beams=5, num_hypotheses=num_hypotheses).run()

    results, num_steps = {}, {}
    for num_hypotheses in (5, 2, 1):
        results[num_hypotheses] = jax.device_get(run(tables, num_hypotheses))
        jax.effects_barrier()
        num_steps[num_hypotheses] = len(steps)
        steps.clear()
    for count, result in results.items():
        np.testing.assert_array_equal(result.tokens[:, :count], results[5].tokens[:, :count])
        np.testing.assert_allclose(result.scores[:, :count], results[5].scores[:, :count], rtol=1e-6)
    assert num_steps[1] < num_steps[5]


def test_beam_history_leads_to_each_hypothesis_own_tokens():
    """The state notes the token of each row at each position."""
    seen = []

    def step(tokens, index, beam_history, noted):
        logits, _ = look_up(tokens, index, beam_history, TABLES)
        noted = noted.at[:, :, index].set(tokens)
        history = jnp.take_along_axis(noted, beam_history, axis=1)
        jax.debug.callback(lambda i, t, h: seen.append((int(i), np.array(t), np.array(h))), index, tokens, history)
        return logits, noted

    jax.jit(lambda noted: beam_search(step, noted, config(FREE, 0.6), beams=4).run())(
        np.zeros((3, 4, LENGTH), np.int32)
    )
    jax.effects_barrier()
    previous = {}
    crossed = False
    for index, tokens, history in sorted(seen, key=lambda item: item[0]):
        assert (history[:, :, index] == tokens).all()
        for sentence in range(3):
            for beam in range(4):
                past = tuple(history[sentence, beam, : index + 1])
                assert past[0] == START
                if index:
                    assert past[:-1] in previous[sentence]
                    crossed |= past[:-1] != previous[sentence][beam]
        previous = {s: [tuple(history[s, k, : index + 1]) for k in range(4)] for s in range(3)}
    assert crossed  # some hypotheses changed their rows


@pytest.mark.parametrize(("size", "count"), [(5, 1), (40, 3), (5000, 10), (5003, 10), (4999, 1), (32000, 8)])
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


def test_length_penalty_by_hand():
    assert length_penalty(jnp.array(1.0), 0.6) == 1.0
    np.testing.assert_allclose(length_penalty(jnp.array(7.0), 1.0), 2.0)
    np.testing.assert_allclose(length_penalty(jnp.array(19.0), 0.5), 2.0)


NUM_SAMPLES = 4000


def draw(own=FREE, *, temperature=1.0, top_k=None, top_p=None):
    """Returns the samples of each sentence as tuples of tokens, and their scores."""
    keys = jax.random.split(jax.random.key(0), (3, NUM_SAMPLES))
    result = jax.device_get(compiled_sample(TABLES, own, keys, temperature, top_k=top_k, top_p=top_p))
    samples = [[tuple(token for token in row if token) for row in rows] for rows in result.tokens.tolist()]
    return samples, result.scores


def probabilities(table, temperature, keep):
    """Returns each hypothesis's probability, given a function that removes tokens from a distribution."""
    result = {}
    for _, tokens in exhaustive(table, 0.0):
        last, probability = START, 1.0
        for index, token in enumerate(tokens):
            if index < LENGTH - 1:  # at the last position only the end is possible
                weights = np.exp(table[index, last].astype(np.float64) / temperature)
                weights = keep(weights / weights.sum())
                probability *= weights[token] / weights.sum()
            last = token
        result[tuple(tokens)] = probability
    return result


def keep_all(weights):
    return weights


def keep_two(weights):
    return np.where(weights >= np.sort(weights)[-2], weights, 0)


def keep_most(weights):
    """Keeps the likeliest that together reach 0.7."""
    kept, total = np.zeros_like(weights), 0.0
    for token in np.argsort(-weights):
        if total >= 0.7:
            break
        kept[token] = weights[token]
        total += weights[token]
    return kept


def keep_most_of_two(weights):
    return keep_most(keep_two(weights) / keep_two(weights).sum())


@pytest.mark.parametrize(
    ("temperature", "options", "keep"),
    [
        (1.0, {}, keep_all),
        (2.5, {}, keep_all),
        (0.5, {}, keep_all),
        (2.0, {"top_k": 2}, keep_two),
        (2.0, {"top_p": 0.7}, keep_most),
        (2.0, {"top_k": 2, "top_p": 0.7}, keep_most_of_two),
        (2.0, {"top_k": 50, "top_p": 1.0}, keep_all),
    ],
)
def test_samples_follow_the_exact_distribution(temperature, options, keep):
    """The counts of all hypotheses are within 4.5 standard deviations, and 2, of what is expected."""
    samples, scores = draw(temperature=temperature, **options)
    for sentence in range(3):
        exact = probabilities(TABLES[sentence], temperature, keep)
        counts = collections.Counter(samples[sentence])
        assert set(counts) <= {tokens for tokens, probability in exact.items() if probability > 0}
        for tokens, probability in exact.items():
            deviation = np.sqrt(NUM_SAMPLES * probability * (1 - probability))
            assert abs(counts[tokens] - NUM_SAMPLES * probability) <= 4.5 * deviation + 2
        score_of = {tuple(tokens): score for score, tokens in exhaustive(TABLES[sentence], 0.0)}
        np.testing.assert_allclose(scores[sentence], [score_of[tokens] for tokens in samples[sentence]], atol=1e-4)
        assert (np.diff(scores[sentence]) <= 0).all()  # best first


def test_each_sample_depends_only_on_its_own_key():
    keys = jax.random.split(jax.random.key(5), (3, 2))
    together = np.asarray(compiled_sample(TABLES, FREE, keys, 1.5).tokens)
    different = set()
    for sentence in range(3):
        samples = set()
        for own_key in keys[sentence]:
            same_key = np.asarray(compiled_sample(TABLES, FREE, jnp.broadcast_to(own_key, (3, 2)), 1.5).tokens)
            assert (same_key[sentence, 0] == same_key[sentence, 1]).all()
            samples.add(tuple(same_key[sentence, 0]))
        assert samples == set(map(tuple, together[sentence]))
        different |= samples
    assert len(different) > 3


def test_samples_respect_prefixes_and_length_bounds():
    prefixes = ([3], [4], [2, 2])
    samples, _ = draw(constraints([3, 4, 4], min_length=3, prefixes=prefixes))
    for prefix, drawn in zip(prefixes, samples, strict=True):
        assert all(list(tokens[: len(prefix)]) == prefix and 3 <= len(tokens) <= 4 for tokens in drawn)
        assert len(set(drawn)) > 2
    assert all(len(tokens) == 3 for tokens in samples[0])
