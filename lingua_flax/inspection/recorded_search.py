"""Beam search for one sentence that records every continuation it considers.

It follows the rules of `translation.search.beam_search`, with which tests compare it. V vocabulary, K beams.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

NextLogProbs = Callable[[Sequence[Sequence[int]]], np.ndarray]  # hypotheses of equal length -> [hypotheses, V]
Outcome = Literal["kept", "finished", "dropped"]  # finished: an end token among the K best


class Candidate(NamedTuple):
    """A continuation of candidate `parent` of the previous step, or of nothing: -1.

    `score` is the log-probability of the whole hypothesis; if it has finished, divided by the length penalty.
    """

    parent: int
    token: int
    score: float
    outcome: Outcome


class RecordedSearch(NamedTuple):
    """The candidates of each step, at most 2 K, and the finished hypotheses, at most K, best first."""

    steps: list[list[Candidate]]
    finished: list[tuple[float, list[int]]]


def recorded_beam_search(
    next_log_probs: NextLogProbs,
    *,
    beams: int,
    max_length: int,
    end_token: int,
    prefix: Sequence[int] = (),
    min_length: int = 0,
    alpha: float = 0.0,
) -> RecordedSearch:
    """Searches with K = `beams` until no hypothesis in the beam can become one of the K best finished ones.

    A single beam is greedy search. `next_log_probs` returns the natural log-probabilities of all tokens after each
    hypothesis. Both lengths count the end token; `alpha`, not negative, is the exponent of the length penalty.
    """

    def penalty(length: int) -> float:
        return ((5.0 + length) / 6.0) ** alpha

    steps: list[list[Candidate]] = []
    finished: list[tuple[float, list[int]]] = []
    alive: list[tuple[int, float, list[int]]] = [(-1, 0.0, [])]  # index in the last step, log-probability, tokens
    for position in range(max_length):
        scores = np.array([score for _, score, _ in alive])[:, None] + next_log_probs([ids for *_, ids in alive])
        forced = prefix[position] if position < len(prefix) else end_token if position == max_length - 1 else None
        if forced is not None:
            scores[:, np.arange(scores.shape[1]) != forced] = -np.inf
        elif position < min_length - 1:
            scores[:, end_token] = -np.inf
        order = np.argsort(-scores, axis=None, kind="stable")[: 2 * beams].tolist()
        best = [divmod(index, scores.shape[1]) for index in order if np.isfinite(scores.flat[index])]
        candidates: list[Candidate] = []
        continued: list[tuple[int, float, list[int]]] = []
        for rank, (row, token) in enumerate(best):
            parent, _, ids = alive[row]
            score, tokens = float(scores[row, token]), [*ids, token]
            outcome: Outcome = "dropped"
            if token == end_token:
                score /= penalty(len(tokens))
                if rank < beams:
                    outcome = "finished"
                    finished.append((score, tokens))
            elif len(continued) < beams:
                outcome = "kept"
                continued.append((rank, score, tokens))
            candidates.append(Candidate(parent, token, score, outcome))
        steps.append(candidates)
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beams]
        alive = continued
        # No log-probability can rise, and no penalty exceeds that of the limit.
        best_possible = alive[0][1] / penalty(max_length) if alive else -np.inf
        if not alive or (len(finished) == beams and (beams == 1 or finished[-1][0] >= best_possible)):
            break
    return RecordedSearch(steps, finished)
