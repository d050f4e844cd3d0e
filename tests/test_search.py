"""Greedy and beam search against exhaustive search over a tiny vocabulary."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from translation.search import IMPOSSIBLE, beam_search, greedy_search, length_penalty

END, START, LENGTH = 1, 2, 4
WORDS = [2, 3, 4]  # the tokens that do not end a sentence; 0 is padding and impossible
ALL = sum(len(WORDS) ** n for n in range(LENGTH))  # hypotheses of at most LENGTH tokens, the end token included
SIZES = {"limits": jnp.full(3, LENGTH), "length": LENGTH, "start": START, "end": END}


@pytest.fixture
def tables():
    """Logits of the next token for each sentence, position and last token."""
    logits = np.random.default_rng(0).normal(size=(3, LENGTH, 5, 5)).astype(np.float32) * 2
    logits[..., 0] = -np.inf
    return jnp.array(logits)


def step_of(tables):
    def step(tokens, index, state):
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
    found = beam_search(step_of(tables), (), beams=ALL, alpha=alpha, **SIZES)
    for sentence in range(3):
        expected = exhaustive(tables[sentence], alpha)
        np.testing.assert_allclose(found.scores[sentence], [score for score, _ in expected], atol=1e-4)
        for row, (_, tokens) in zip(found.tokens[sentence], expected, strict=True):
            assert row.tolist() == tokens + [0] * (LENGTH - len(tokens))


def test_one_beam_is_greedy_search(tables):
    greedy = greedy_search(step_of(tables), (), alpha=0.6, **SIZES)
    beam = beam_search(step_of(tables), (), beams=1, alpha=0.6, **SIZES)
    np.testing.assert_array_equal(greedy.tokens, beam.tokens)
    np.testing.assert_allclose(greedy.scores, beam.scores, rtol=1e-6)
    for sentence in range(3):  # by a loop over argmax
        last, tokens = START, []
        while last != END:
            last = END if len(tokens) == LENGTH - 1 else int(jnp.argmax(tables[sentence, len(tokens), last]))
            tokens.append(last)
        assert greedy.tokens[sentence, 0, : len(tokens)].tolist() == tokens


def test_a_beam_wider_than_the_space_has_no_more_hypotheses_than_there_are(tables):
    found = beam_search(step_of(tables), (), beams=ALL + 7, alpha=0.0, **SIZES)
    assert (np.asarray(found.scores) > IMPOSSIBLE / 2).sum(axis=1).tolist() == [ALL] * 3


def test_wider_beams_never_score_worse_here(tables):
    scores = [beam_search(step_of(tables), (), beams=k, alpha=0.0, **SIZES).scores[:, 0] for k in (1, 2, 5, ALL)]
    assert all((after >= before - 1e-6).all() for before, after in itertools.pairwise(scores))


@pytest.mark.parametrize("beams", [1, ALL])
def test_each_sentence_has_its_own_limit(tables, beams):
    sizes = SIZES | {"limits": jnp.array([2, 4, 3])}
    found = beam_search(step_of(tables), (), beams=beams, alpha=0.6, **sizes)
    assert ((np.asarray(found.tokens) != 0).sum(axis=-1).max(axis=1) <= np.array([2, 4, 3])).all()
    for sentence, limit in enumerate((2, 4, 3)):
        alone = beam_search(
            step_of(tables[sentence : sentence + 1]),
            (),
            beams=beams,
            alpha=0.6,
            **SIZES | {"limits": jnp.array([limit])},
        )
        np.testing.assert_array_equal(alone.tokens[0], found.tokens[sentence])
        np.testing.assert_allclose(alone.scores[0], found.scores[sentence], rtol=1e-6)
    greedy = greedy_search(step_of(tables), (), alpha=0.6, **sizes)
    assert beams > 1 or (greedy.tokens == found.tokens).all()


def test_state_follows_its_beam(tables):
    """A state that notes the tokens it was given must tell each hypothesis's own history."""

    def step(tokens, index, history):
        logits, _ = step_of(tables)(tokens, index, ())
        return logits, history.at[:, :, index].set(tokens)

    seen = []

    def noting(tokens, index, history):
        logits, history = step(tokens, index, history)
        jax.debug.callback(lambda i, t, h: seen.append((int(i), np.array(t), np.array(h))), index, tokens, history)
        return logits, history

    beam_search(noting, jnp.zeros((3, 4, LENGTH), jnp.int32), beams=4, alpha=0.6, **SIZES)
    jax.effects_barrier()
    previous = {}
    for index, tokens, history in sorted(seen, key=lambda item: item[0]):
        assert (history[:, :, index] == tokens).all()
        for sentence in range(3):
            for beam in range(4):
                past = tuple(history[sentence, beam, : index + 1])
                assert past[0] == START
                if index:
                    assert past[:-1] in previous[sentence]
        previous = {s: {tuple(history[s, k, : index + 1]) for k in range(4)} for s in range(3)}


def test_length_penalty_by_hand():
    assert length_penalty(jnp.array(1.0), 0.6) == 1.0
    np.testing.assert_allclose(length_penalty(jnp.array(7.0), 1.0), 2.0)
    np.testing.assert_allclose(length_penalty(jnp.array(19.0), 0.5), 2.0)
