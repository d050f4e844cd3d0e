"""What it costs a network that its sources are in upper case, in title case or without final punctuation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lingua_flax.data.text_changes import CHANGES, no_final_punctuation
from lingua_flax.evaluation.bleu import score

UNTOUCHED = "untouched"
PERTURBATIONS = (UNTOUCHED, *CHANGES)


@dataclass(frozen=True)
class PerturbedScores:
    """Scores in percent on sources that are all changed in the same way, ignoring case and final punctuation.

    Attributes:
      likewise: share of the translations that have the change, too; 1 for untouched sources.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    likewise: float


def perturbed_scores(
    translate: Callable[[Sequence[str]], Sequence[str]],
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str,
) -> dict[str, PerturbedScores]:
    """Returns the scores of the translations of the sources with each of the PERTURBATIONS.

    All are compared with the same references, without regard to case and final punctuation: whether these should follow
    the source is a matter of taste, which `likewise` reports. The scores then differ only by what else is lost.
    """
    streams = [list(map(no_final_punctuation, stream)) for stream in references]
    results = {}
    for name in PERTURBATIONS:
        change = CHANGES.get(name, str)
        translations = translate([change(source) for source in sources])
        scores = score(list(map(no_final_punctuation, translations)), *streams, tokenize=tokenize, lowercase=True)
        likewise = sum(change(line) == line for line in translations) / len(translations)
        results[name] = PerturbedScores(scores.bleu, scores.bleu_signature, scores.chrf, likewise)
    return results
