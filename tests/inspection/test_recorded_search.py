"""The recorded beam search: compared with all continuations, and worked by hand.

That it finds what the compiled search finds is tested in test_interventions.py.
"""

import itertools

import numpy as np
import pytest

from lingua_flax.inspection.recorded_search import Candidate, recorded_beam_search
from tests.helpers.search import (
    END,
    LENGTH,
    START,
    WIDE,
    beam_search_by_lists,
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


def recorded(sentence, beams, alpha, limit, minimum, prefix):
    """Returns the recorded search of a sentence."""

    def next_log_probs(hypotheses):
        (position,) = {len(ids) for ids in hypotheses}
        return log_softmax(TABLES[sentence, position][[ids[-1] if ids else START for ids in hypotheses]])

    lengths = {"max_length": limit, "min_length": minimum}
    return recorded_beam_search(next_log_probs, beams=beams, alpha=alpha, prefix=prefix, end_token=END, **lengths)


@pytest.mark.parametrize("beams", [1, 2, 5, WIDE])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_steps_are_the_best_continuations_and_lead_to_the_hypotheses(beams, alpha):
    for own, sentence in itertools.product(CONSTRAINTS, range(len(TABLES))):
        limits = {"limit": int(own.max_lengths[sentence]), "minimum": int(own.min_lengths[sentence])}
        limits["prefix"] = [token for token in own.prefixes[sentence].tolist() if token]
        search = recorded(sentence, beams, alpha, **limits)
        steps, finished = beam_search_by_lists(TABLES[sentence], beams, alpha, **limits)
        assert [tokens for _, tokens in search.finished] == [tokens for _, tokens in finished]
        assert len(search.steps) == len(steps)
        before = []
        for step, expected in zip(search.steps, steps, strict=True):
            hypotheses, kept = [], []
            for rank, (candidate, (log_probability, tokens)) in enumerate(zip(step, expected, strict=True)):
                has_ended = tokens[-1] == END
                assert (candidate.parent == -1) == (before == [])
                hypotheses.append([*(before[candidate.parent] if before else []), candidate.token])
                assert hypotheses[-1] == tokens
                score = log_probability / (penalty(len(tokens), alpha) if has_ended else 1)
                assert candidate.score == pytest.approx(score, abs=1e-5)
                wanted = rank < beams if has_ended else len(kept) < beams
                assert candidate.outcome == (("finished" if has_ended else "kept") if wanted else "dropped")
                if candidate.outcome == "kept":
                    kept.append(rank)
            before = hypotheses


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
