"""What a beam search considers, read from it after each of its steps."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from lingua_flax.translation.search import IMPOSSIBLE, SearchState, length_penalty

Outcome = Literal["kept", "finished", "dropped"]  # finished: an end token among the K best


class Candidate(NamedTuple):
    """A continuation of candidate `parent` of the previous step, or of nothing: -1.

    `score` is the log-probability of the whole hypothesis; if it has finished, divided by the length penalty.
    """

    parent: int
    token: int
    score: float
    outcome: Outcome


def recorded_search(
    after_each_step: Iterable[SearchState], *, end_token: int, alpha: float = 0.0, offset: float = 5.0
) -> list[list[Candidate]]:
    """Returns the candidates of each step of a beam search, at most 2 K, given the progress of a single sentence.

    `alpha` and `offset` are those of the length penalty.
    """
    steps: list[list[Candidate]] = []
    parents: list[int] = []  # the candidates of the previous step that the beam kept
    for length, progress in enumerate(after_each_step, 1):
        assert progress.considered
        scores, origins, tokens = (np.asarray(array)[0] for array in progress.considered)
        beams = progress.last.shape[1]
        step: list[Candidate] = []
        kept: list[int] = []
        for rank in np.flatnonzero(scores > IMPOSSIBLE / 2).tolist():
            score, token = float(scores[rank]), int(tokens[rank])
            outcome: Outcome = "dropped"
            if token == end_token and rank < beams:
                score /= float(length_penalty(jnp.float32(length), alpha, offset))
                outcome = "finished"
            elif token != end_token and len(kept) < beams:
                outcome = "kept"
                kept.append(rank)
            step.append(Candidate(parents[origins[rank]] if parents else -1, token, score, outcome))
        steps.append(step)
        parents = kept
    return steps
