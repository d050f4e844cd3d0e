"""The recorded beam search: compared with all continuations, and worked by hand.

That it finds what the compiled search finds is tested in test_interventions.py.
"""

import numpy as np
import pytest

from lingua_flax.inspection.recorded_search import Candidate, recorded_beam_search
from tests.helpers.search import (
    END,
    LENGTH,
    START,
    WIDE,
    WORDS,
    constraints,
    log_softmax,
    penalty,
    random_tables,
)

TABLES = random_tables(6, seed=4, scale=2)
PREFIXES: list[list[int]] = [[3], [], [4, 2], [2, 3, 4], [4, END], [END]]
CONSTRAINTS = [
    constraints((1, 2, 3, 4, 2, 3), prefixes=[[]] * 6),
    constraints((LENGTH,) * 6, min_length=3, prefixes=[[]] * 6),
    constraints((LENGTH,) * 6, prefixes=PREFIXES),
    constraints((3, 2, 4, 4, 3, 2), min_length=2, prefixes=PREFIXES),
]


def recorded(own, sentence, *, beams, alpha):
    """Returns the recorded search of a sentence."""

    def next_log_probs(hypotheses):
        (position,) = {len(ids) for ids in hypotheses}
        return log_softmax(TABLES[sentence, position][[ids[-1] if ids else START for ids in hypotheses]])

    return recorded_beam_search(
        next_log_probs,
        beams=beams,
        max_length=int(own.max_lengths[sentence]),
        end_token=END,
        prefix=[int(token) for token in own.prefixes[sentence] if token],
        min_length=int(own.min_lengths[sentence]),
        alpha=alpha,
    )


def continuations(table, alive, position, own, sentence):
    """Returns all continuations that are allowed as (log-probability, tokens), best first."""
    prefix = [token for token in own.prefixes[sentence] if token]
    allowed = {END, *WORDS}
    if position < own.min_lengths[sentence] - 1:
        allowed = set(WORDS)
    if position == own.max_lengths[sentence] - 1:
        allowed = {END}
    if position < len(prefix):
        allowed = {prefix[position]}
    log_probabilities = log_softmax(table)[position]
    found = [
        (score + log_probabilities[tokens[-1] if tokens else START, token], [*tokens, token])
        for score, tokens in alive
        for token in allowed
    ]
    return sorted(found, reverse=True)


def check_steps(search, own, sentence, *, beams, alpha):
    """Checks that the steps are the best continuations, that the search ends in time, and what it finds."""
    alive, ended, last = [(0.0, [])], [], []
    for position, step in enumerate(search.steps):
        expected = continuations(TABLES[sentence], alive, position, own, sentence)[: 2 * beams]
        hypotheses = []
        for candidate in step:
            if position:
                assert last[candidate.parent][0] == "kept"
            else:
                assert candidate.parent == -1
            before = last[candidate.parent][1] if position else []
            hypotheses.append((candidate.outcome, [*before, candidate.token]))
        assert [tokens for _, tokens in hypotheses] == [tokens for _, tokens in expected]
        factors = [penalty(len(tokens), alpha) if tokens[-1] == END else 1.0 for _, tokens in expected]
        scores = [score / factor for (score, _), factor in zip(expected, factors, strict=True)]
        np.testing.assert_allclose([candidate.score for candidate in step], scores, atol=1e-5)
        words = [rank for rank, (_, tokens) in enumerate(expected) if tokens[-1] != END]
        kept = [rank for rank, candidate in enumerate(step) if candidate.outcome == "kept"]
        finished = [rank for rank, candidate in enumerate(step) if candidate.outcome == "finished"]
        assert kept == words[:beams]
        assert finished == [rank for rank in range(min(beams, len(step))) if rank not in words]
        alive = [expected[rank] for rank in kept]
        ended += [(scores[rank], expected[rank][1]) for rank in finished]
        last = hypotheses
        limit = own.max_lengths[sentence]
        reachable = [score / penalty(n, alpha) for score, _ in alive for n in range(position + 2, limit + 1)]
        settled = len(ended) >= beams and sorted(ended)[-beams][0] >= max(reachable, default=-np.inf)
        assert (settled or not alive or (beams == 1 and bool(ended))) == (position == len(search.steps) - 1)
    assert [tokens for _, tokens in search.finished] == [tokens for _, tokens in sorted(ended, reverse=True)[:beams]]


@pytest.mark.parametrize("beams", [1, 2, 5, WIDE])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_steps_are_the_best_continuations_and_lead_to_the_hypotheses(beams, alpha):
    for own in CONSTRAINTS:
        for sentence in range(len(TABLES)):
            search = recorded(own, sentence, beams=beams, alpha=alpha)
            check_steps(search, own, sentence, beams=beams, alpha=alpha)


def test_two_steps_worked_by_hand():
    """Always </s> 0.3, a 0.6 and b 0.1; at most two tokens; two beams."""
    with np.errstate(divide="ignore"):
        always = np.log([[0.0, 0.3, 0.6, 0.1]])
    search = recorded_beam_search(
        lambda hypotheses: np.repeat(always, len(hypotheses), axis=0), beams=2, max_length=2, end_token=1
    )
    rounded = [[Candidate(c.parent, c.token, round(np.exp(c.score), 6), c.outcome) for c in step] for step in search[0]]
    assert rounded == [
        [(-1, 2, 0.6, "kept"), (-1, 1, 0.3, "finished"), (-1, 3, 0.1, "kept")],
        [(0, 1, 0.18, "finished"), (2, 1, 0.03, "finished")],
    ]
    assert [(round(np.exp(score), 6), tokens) for score, tokens in search.finished] == [(0.3, [1]), (0.18, [2, 1])]
