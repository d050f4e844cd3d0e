"""Greedy and beam search against exhaustive search over a tiny vocabulary."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from translation.search import (
    IMPOSSIBLE,
    Constraints,
    SearchConfig,
    StateGrowth,
    beam_search,
    greedy_search,
    length_penalty,
    sample,
    top_k_sums,
)

END, START, LENGTH = 1, 2, 4
WORDS = [2, 3, 4]  # the tokens that do not end a sentence; 0 is padding and impossible
ALL = sum(len(WORDS) ** n for n in range(LENGTH))  # hypotheses of at most LENGTH tokens, the end token included


def constraints(max_lengths=(LENGTH,) * 3, min_lengths=1, prefixes=((),) * 3):
    room = max(map(len, prefixes))
    padded = [[*prefix, *[0] * (room - len(prefix))] for prefix in prefixes]
    return Constraints(
        jnp.array(max_lengths),
        jnp.full(len(max_lengths), min_lengths),
        jnp.array(padded, jnp.int32).reshape(len(max_lengths), room),
    )


FREE = constraints()


def task(own=FREE, **options):
    return SearchConfig(own, LENGTH, START, END, **options)


@pytest.fixture
def tables():
    """Logits of the next token for each sentence, position and last token."""
    logits = np.random.default_rng(0).normal(size=(3, LENGTH, 5, 5)).astype(np.float32) * 2
    logits[..., 0] = -np.inf
    return jnp.array(logits)


def step_of(tables):
    def step(tokens, index, beam_history, state):
        return jax.vmap(lambda table, last: table[index][last])(tables, tokens), state

    return step


def exhaustive(table, alpha):
    """All hypotheses of a sentence with their scores, best first."""
    log_probabilities = np.array(jax.nn.log_softmax(table, axis=-1))
    found = []
    for count in range(LENGTH):
        for words in itertools.product(WORDS, repeat=count):
            tokens, last, total = [*words, END], START, 0.0
            for index, token in enumerate(tokens):
                total += log_probabilities[index, last, token]
                last = token
            found.append((total / ((5 + len(tokens)) / 6) ** alpha, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(tables, alpha):
    found = beam_search(step_of(tables), (), task(length_penalty=alpha), beams=ALL)
    for sentence in range(3):
        expected = exhaustive(tables[sentence], alpha)
        np.testing.assert_allclose(found.scores[sentence], [score for score, _ in expected], atol=1e-4)
        for row, (_, tokens) in zip(found.tokens[sentence], expected, strict=True):
            assert row.tolist() == tokens + [0] * (LENGTH - len(tokens))


def test_one_beam_is_greedy_search(tables):
    greedy = greedy_search(step_of(tables), (), task(length_penalty=0.6))
    beam = beam_search(step_of(tables), (), task(length_penalty=0.6), beams=1)
    np.testing.assert_array_equal(greedy.tokens, beam.tokens)
    np.testing.assert_allclose(greedy.scores, beam.scores, rtol=1e-6, atol=1e-6)
    for sentence in range(3):  # by a loop over argmax
        last, tokens = START, []
        while last != END:
            last = END if len(tokens) == LENGTH - 1 else int(jnp.argmax(tables[sentence, len(tokens), last]))
            tokens.append(last)
        assert greedy.tokens[sentence, 0, : len(tokens)].tolist() == tokens


def test_a_beam_wider_than_the_space_has_no_more_hypotheses_than_there_are(tables):
    found = beam_search(step_of(tables), (), task(), beams=ALL + 7)
    assert (np.asarray(found.scores) > IMPOSSIBLE / 2).sum(axis=1).tolist() == [ALL] * 3


def test_wider_beams_never_score_worse_here(tables):
    scores = [beam_search(step_of(tables), (), task(), beams=k).scores[:, 0] for k in (1, 2, 5, ALL)]
    assert all((after >= before - 1e-6).all() for before, after in itertools.pairwise(scores))


@pytest.mark.parametrize("beams", [1, ALL])
def test_each_sentence_has_its_own_limit(tables, beams):
    limited = task(constraints([2, 4, 3]), length_penalty=0.6)
    found = beam_search(step_of(tables), (), limited, beams=beams)
    assert ((np.asarray(found.tokens) != 0).sum(axis=-1).max(axis=1) <= np.array([2, 4, 3])).all()
    for sentence, limit in enumerate((2, 4, 3)):
        alone = beam_search(
            step_of(tables[sentence : sentence + 1]),
            (),
            task(constraints([limit], prefixes=((),)), length_penalty=0.6),
            beams=beams,
        )
        np.testing.assert_array_equal(alone.tokens[0], found.tokens[sentence])
        np.testing.assert_allclose(alone.scores[0], found.scores[sentence], rtol=1e-6)
    greedy = greedy_search(step_of(tables), (), limited)
    assert beams > 1 or (greedy.tokens == found.tokens).all()


@pytest.mark.parametrize("first", [LENGTH, 2, 1])
def test_sentences_that_take_long_go_on_in_smaller_batches_with_more_room_and_nothing_changes(first):
    """22 sentences, of which 8 and then 2 are left, or more where there was room for fewer tokens; each also alone."""
    tables = np.random.default_rng(1).normal(size=(22, LENGTH, 5, 5)).astype(np.float32) * 2
    tables[..., 0] = -np.inf
    limits = jnp.array([1, 2, 4, 2, 1, 2, 3, 1, 1, 3, 1] * 2)
    sizes = []

    def step(tokens, index, beam_history, state):  # what it knows of a sentence is in the state, as it must be
        tables, noted = state
        sizes.append((len(tokens), beam_history.shape[2], noted.shape[1]))
        noted = noted.at[:, index].set(index + 1)
        positions = jnp.arange(noted.shape[1])
        nothing_lost = jnp.all(noted == jnp.where(positions <= index, positions + 1, 0))
        logits = jax.vmap(lambda table, last: table[index][last])(tables, tokens)
        return jnp.where(nothing_lost, logits, jnp.nan), (tables, noted)

    def longer(state, length):
        return state[0], jnp.pad(state[1], ((0, 0), (0, length - state[1].shape[1])))

    def found(search, options, tables, max_lengths, keys):
        own = Constraints(max_lengths, jnp.ones_like(max_lengths), jnp.zeros((len(max_lengths), 0), jnp.int32))
        state = tables, jnp.zeros((len(tables), first), jnp.int32)
        more = {"keys": keys} if search is sample else {}
        return search(
            step, state, task(own, length_penalty=0.6, state_growth=StateGrowth(first, longer)), **options, **more
        )

    keys = jax.random.split(jax.random.key(3), (22, 2))
    drawing = {"temperature": 1.0, "top_k": None, "top_p": None}
    for search, options in ((beam_search, {"beams": 3}), (greedy_search, {}), (sample, drawing)):
        compiled = jax.jit(functools.partial(found, search, options))
        alone = [compiled(tables[i : i + 1], limits[i : i + 1], keys[i : i + 1]) for i in range(22)]
        assert set(sizes) == {(1, LENGTH, LENGTH)}
        sizes.clear()
        together = compiled(tables, limits, keys)
        assert sorted(set(sizes)) == [(2, LENGTH, LENGTH), (8, LENGTH, LENGTH), (22, first, first)]
        sizes.clear()
        np.testing.assert_array_equal(together.tokens, np.concatenate([one.tokens for one in alone]))
        np.testing.assert_allclose(together.scores, np.concatenate([one.scores for one in alone]), rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_an_early_end_leaves_the_wanted_hypotheses_as_they_were(alpha):
    """Tokens that are likely to end early, so that what lives on falls behind: the best are those of the whole search,
    and it took fewer steps."""
    logits = np.random.default_rng(2).normal(size=(40, 9, 5, 5)).astype(np.float32) * 3
    logits[..., 0] = -np.inf
    tables, taken = jnp.asarray(logits), {}
    own = Constraints(jnp.full(40, 9), jnp.ones(40, jnp.int32), jnp.zeros((40, 0), jnp.int32))

    def step(tokens, index, beam_history, tables):
        jax.debug.callback(lambda index: taken.setdefault(num_hypotheses, []).append(int(index)), index)
        return jax.vmap(lambda table, last: table[index][last])(tables, tokens), tables

    found = {}
    for num_hypotheses in (5, 2, 1):
        found[num_hypotheses] = beam_search(
            step, tables, SearchConfig(own, 9, START, END, alpha), beams=5, num_hypotheses=num_hypotheses
        )
        jax.effects_barrier()
        np.testing.assert_array_equal(
            found[num_hypotheses].tokens[:, :num_hypotheses], found[5].tokens[:, :num_hypotheses]
        )
        np.testing.assert_allclose(
            found[num_hypotheses].scores[:, :num_hypotheses], found[5].scores[:, :num_hypotheses], rtol=1e-6
        )
    assert len(taken[1]) < len(taken[5])


def test_the_lineage_tells_each_beams_history(tables):
    """Of a state that notes which token stood in which row, the beam_history must tell each hypothesis's own tokens."""
    seen = []

    def step(tokens, index, beam_history, given):
        logits, _ = step_of(tables)(tokens, index, beam_history, ())
        given = given.at[:, :, index].set(tokens)
        history = jnp.take_along_axis(given, beam_history, axis=1)
        jax.debug.callback(lambda i, t, h: seen.append((int(i), np.array(t), np.array(h))), index, tokens, history)
        return logits, given

    beam_search(step, jnp.zeros((3, 4, LENGTH), jnp.int32), task(length_penalty=0.6), beams=4)
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
    assert crossed  # hypotheses did change their rows


@pytest.mark.parametrize(("size", "count"), [(5, 1), (40, 3), (5000, 10), (5003, 10), (4999, 1), (32000, 8)])
def test_the_best_sums_equal_those_of_numpy(size, count):
    """With ties as well: of equal sums the first counts."""
    generator = np.random.default_rng(0)
    x = generator.integers(-9 if size == 5003 else -(10**6), 9, (3, 2, size)).astype(np.float32)
    x[0, 0] = -np.inf
    x[0, 1, 3:] = -np.inf
    offsets = generator.integers(-5, 5, (3, 2)).astype(np.float32)
    sums = (x + offsets[..., None]).reshape(3, -1)
    expected = np.argsort(-sums, axis=1, kind="stable")[:, :count]
    found, rows, columns = top_k_sums(jnp.asarray(x), jnp.asarray(offsets), count)
    np.testing.assert_array_equal(rows * size + columns, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(sums, expected, axis=1))


def test_length_penalty_by_hand():
    assert length_penalty(jnp.array(1.0), 0.6) == 1.0
    np.testing.assert_allclose(length_penalty(jnp.array(7.0), 1.0), 2.0)
    np.testing.assert_allclose(length_penalty(jnp.array(19.0), 0.5), 2.0)


@pytest.mark.parametrize("minimum", [2, 3, LENGTH])
def test_a_shortest_length_leaves_the_longer_hypotheses_as_they_were(tables, minimum):
    found = beam_search(step_of(tables), (), task(constraints(min_lengths=minimum), length_penalty=0.6), beams=ALL)
    greedy = greedy_search(step_of(tables), (), task(constraints(min_lengths=minimum)))
    for sentence in range(3):
        expected = [each for each in exhaustive(tables[sentence], 0.6) if len(each[1]) >= minimum]
        assert (np.asarray(found.scores[sentence]) > IMPOSSIBLE / 2).sum() == len(expected)
        for tokens, score, (expected_score, words) in zip(
            found.tokens[sentence], found.scores[sentence], expected, strict=False
        ):
            assert tokens.tolist() == words + [0] * (LENGTH - len(words))
            np.testing.assert_allclose(score, expected_score, atol=1e-4)
        assert np.count_nonzero(greedy.tokens[sentence]) >= minimum


def test_a_prefix_leaves_the_hypotheses_that_begin_with_it_as_they_were(tables):
    prefixes = ([3], [], [4, 2])
    forced = constraints(prefixes=prefixes)
    found = beam_search(step_of(tables), (), task(forced, length_penalty=0.6), beams=ALL)
    greedy = greedy_search(step_of(tables), (), task(forced))
    for sentence, prefix in enumerate(prefixes):
        expected = [each for each in exhaustive(tables[sentence], 0.6) if each[1][: len(prefix)] == prefix]
        assert (np.asarray(found.scores[sentence]) > IMPOSSIBLE / 2).sum() == len(expected)
        for tokens, score, (expected_score, words) in zip(
            found.tokens[sentence], found.scores[sentence], expected, strict=False
        ):
            assert tokens.tolist() == words + [0] * (LENGTH - len(words))
            np.testing.assert_allclose(score, expected_score, atol=1e-4)
        assert greedy.tokens[sentence, 0, : len(prefix)].tolist() == prefix


def drawn(tables, count, *, temperature=1.0, top_k=None, top_p=None, seed=0, own=FREE):
    """So many samples of each sentence as {tokens: how often}, and their scores."""
    keys = jax.random.split(jax.random.key(seed), (3, count))
    found = sample(step_of(tables), (), task(own), keys=keys, temperature=temperature, top_k=top_k, top_p=top_p)
    texts = [[tuple(token for token in row if token) for row in rows] for rows in found.tokens.tolist()]
    return [collections.Counter(each) for each in texts], texts, found.scores


def probabilities(table, temperature, keep):
    """What is to be drawn, by hand: each hypothesis's probability where `keep` chooses the tokens of each position."""
    found = {}
    for _, tokens in exhaustive(table, 0.0):
        last, probability = START, 1.0
        for index, token in enumerate(tokens):
            if index < LENGTH - 1:  # at the last position only the end is possible
                weights = np.exp(np.asarray(table[index, last], np.float64) / temperature)
                weights = keep(weights / weights.sum())
                probability *= weights[token] / weights.sum()
            last = token
        found[tuple(tokens)] = probability
    return found


def keep_two(weights):
    return np.where(weights >= np.sort(weights)[-2], weights, 0)


def keep_most(weights):
    """The likeliest that together reach 0.7."""
    kept, total = np.zeros_like(weights), 0.0
    for token in np.argsort(-weights):
        if total >= 0.7:
            break
        kept[token] = weights[token]
        total += weights[token]
    return kept


@pytest.mark.parametrize(
    ("temperature", "options", "keep"),
    [
        (1.0, {}, lambda weights: weights),
        (2.5, {}, lambda weights: weights),
        (0.5, {}, lambda weights: weights),
        (2.0, {"top_k": 2}, keep_two),
        (2.0, {"top_p": 0.7}, keep_most),
        (2.0, {"top_k": 2, "top_p": 0.7}, lambda weights: keep_most(keep_two(weights) / keep_two(weights).sum())),
        (2.0, {"top_k": 50, "top_p": 1.0}, lambda weights: weights),
    ],
)
def test_samples_come_as_often_as_they_are_likely(tables, temperature, options, keep):
    """Against the exact distribution over all hypotheses; 4,000 draws are within 4.5 deviations and 2 of it."""
    count = 4000
    counts, texts, scores = drawn(tables, count, temperature=temperature, **options)
    for sentence in range(3):
        exact = probabilities(tables[sentence], temperature, keep)
        assert set(counts[sentence]) <= {tokens for tokens, probability in exact.items() if probability > 0}
        for tokens, probability in exact.items():
            deviation = np.sqrt(count * probability * (1 - probability))
            assert abs(counts[sentence][tokens] - count * probability) <= 4.5 * deviation + 2
        own = {tuple(tokens): score for score, tokens in exhaustive(tables[sentence], 0.0)}
        np.testing.assert_allclose(scores[sentence], [own[tokens] for tokens in texts[sentence]], atol=1e-4)
        assert (np.diff(scores[sentence]) <= 0).all()  # best first


def test_what_is_drawn_depends_on_its_own_key_only(tables):
    keys = jax.random.split(jax.random.key(5), (3, 2))
    options = {"temperature": 1.5, "top_k": None, "top_p": None}
    together = sample(step_of(tables), (), task(), keys=keys, **options)
    for sentence in range(3):
        rows = {
            tuple(np.asarray(sample(
                step_of(tables[sentence : sentence + 1]), (), task(constraints([LENGTH], prefixes=((),))),
                keys=keys[sentence : sentence + 1, k : k + 1], **options,
            ).tokens)[0, 0].tolist())
            for k in range(2)
        }  # fmt: skip
        assert rows == {tuple(row) for row in np.asarray(together.tokens[sentence]).tolist()}
    assert drawn(tables, 6, seed=1)[1] != drawn(tables, 6, seed=2)[1]


def test_samples_keep_prefix_and_lengths(tables):
    forced = constraints([3, 4, 4], min_lengths=3, prefixes=([3], [4], [2, 2]))
    counts, *_ = drawn(tables, 200, own=forced)
    for sentence, prefix in enumerate(((3,), (4,), (2, 2))):
        assert all(tokens[: len(prefix)] == prefix and 3 <= len(tokens) <= 4 for tokens in counts[sentence])
        assert len(counts[sentence]) > 2
    assert all(len(tokens) == 3 for tokens in counts[0])
