"""What a beam search considers: compared with all continuations, and worked by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.inspection.recorded_search import Candidate, recorded_search
from lingua_flax.translation.search import BeamSearch, Constraints
from tests.helpers.search import (
    END,
    LENGTH,
    START,
    WIDE,
    beam_search_by_lists,
    constraints,
    look_up,
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


@functools.partial(jax.jit, static_argnames=("beams", "end"))
def stepped(progress, alpha, *, beams, end=END):
    search = BeamSearch(look_up, beams, START, end, alpha)
    progress = search.next(progress)
    return progress, search.done(progress), search.result(progress)


def recorded(table, own, beams, alpha, end=END):
    """Returns the recorded search of a sentence, and the tokens and scores of the hypotheses."""
    search = BeamSearch(look_up, beams, START, end, alpha)
    own = own._replace(num_hypotheses=np.full(1, beams, np.int32))
    progress, found = search.begin(Constraints(*map(jnp.asarray, own)), table[None], len(table)), []

    def after_each_step():
        after, is_done = progress, False
        while not is_done:
            after, is_done, result = stepped(after, alpha, beams=beams, end=end)
            found[:] = [result]
            yield after

    steps = recorded_search(after_each_step(), end_token=end, alpha=alpha)
    (hypotheses,) = found
    hypotheses = [[token for token in row if token] for row in hypotheses.tokens[0].tolist()]
    return steps, [tokens for tokens in hypotheses if tokens]


@pytest.mark.parametrize("beams", [1, 2, 5, WIDE])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_steps_are_the_best_continuations_and_lead_to_the_hypotheses(beams, alpha):
    for own, sentence in itertools.product(CONSTRAINTS, range(len(TABLES))):
        limits = {"limit": int(own.max_lengths[sentence]), "minimum": int(own.min_lengths[sentence])}
        limits["prefix"] = [token for token in own.prefixes[sentence].tolist() if token]
        of_sentence = Constraints(*(array[sentence : sentence + 1] for array in own))
        recorded_steps, hypotheses_found = recorded(TABLES[sentence], of_sentence, beams, alpha)
        steps, finished = beam_search_by_lists(TABLES[sentence], beams, alpha, **limits)
        assert hypotheses_found == [tokens for _, tokens in finished]
        assert len(recorded_steps) == len(steps)
        before = []
        for step, expected in zip(recorded_steps, steps, strict=True):
            hypotheses, kept = [], []
            for rank, (candidate, (log_probability, tokens)) in enumerate(zip(step, expected, strict=True)):
                has_ended = tokens[-1] == END
                assert (candidate.parent == -1) == (before == [])
                hypotheses.append([*(before[candidate.parent] if before else []), candidate.token])
                assert hypotheses[-1] == tokens
                wanted = rank < beams if has_ended else len(kept) < beams
                score = log_probability / (penalty(len(tokens), alpha) if has_ended and wanted else 1)
                assert candidate.score == pytest.approx(score, abs=1e-5)
                assert candidate.outcome == (("finished" if has_ended else "kept") if wanted else "dropped")
                if candidate.outcome == "kept":
                    kept.append(rank)
            before = hypotheses


def test_two_steps_worked_by_hand():
    """Always </s> 0.3, a 0.6 and b 0.1; at most two tokens; two beams."""
    with np.errstate(divide="ignore"):
        always = np.broadcast_to(np.log(np.float32([0.0, 0.3, 0.6, 0.1])), (2, 4, 4))
    own = constraints((2,), prefixes=((),))
    steps, hypotheses = recorded(jnp.asarray(always), own, 2, 0.0, end=1)
    rounded = [[Candidate(c.parent, c.token, round(np.exp(c.score), 6), c.outcome) for c in step] for step in steps]
    assert rounded == [
        [(-1, 2, 0.6, "kept"), (-1, 1, 0.3, "finished"), (-1, 3, 0.1, "kept")],
        [(0, 1, 0.18, "finished"), (2, 1, 0.03, "finished")],
    ]
    assert hypotheses == [[1], [2, 1]]
