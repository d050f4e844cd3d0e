"""BLEU and chrF by sacreBLEU, each with the signature that says how it was computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

BOOTSTRAP_SAMPLES = 1000


@dataclass(frozen=True)
class Scores:
    """Corpus scores in percent; the interval holds 95% of bootstrap resamples (Koehn 2004).

    bleu and chrf are with case, or for a model that writes lower case without, as their signatures say.
    """

    bleu: float
    bleu_low: float
    bleu_high: float
    bleu_signature: str
    bleu_lowercase: float
    bleu_lowercase_signature: str
    chrf: float
    chrf_signature: str
    sentences: int


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> float:
    """BLEU with case or without, 13a tokenization."""
    return BLEU(lowercase=lowercase).corpus_score(list(hypotheses), [list(references)]).score


def score(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Scores:
    """Scores detokenized hypotheses against untouched references, line by line; lowercase: without case."""
    streams = [list(references)]
    headline, caseless, chrf = BLEU(lowercase=lowercase), BLEU(lowercase=True), CHRF(lowercase=lowercase)
    bleu = headline.corpus_score(hypotheses, streams)
    interval = BLEU(lowercase=lowercase).corpus_score(hypotheses, streams, n_bootstrap=BOOTSTRAP_SAMPLES)
    bleu_lowercase = caseless.corpus_score(hypotheses, streams).score
    chrf_score = chrf.corpus_score(hypotheses, streams).score
    return Scores(
        bleu=bleu.score,
        bleu_low=interval._mean - interval._ci,  # sacreBLEU offers the interval nowhere else
        bleu_high=interval._mean + interval._ci,
        bleu_signature=str(headline.get_signature()),
        bleu_lowercase=bleu_lowercase,
        bleu_lowercase_signature=str(caseless.get_signature()),
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


@dataclass(frozen=True)
class Comparison:
    """BLEU and chrF of translations and of a baseline's translations of the same lines, in percent.

    The p-values are sacreBLEU's estimate of how often chance alone brings so large a difference (Koehn 2004).
    """

    bleu: float
    baseline_bleu: float
    bleu_p_value: float
    chrf: float
    baseline_chrf: float
    chrf_p_value: float
    compare_signature: str


def compare(
    hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> Comparison:
    """sacreBLEU's paired bootstrap test of hypotheses against a baseline's, line by line; lowercase: without case."""
    test = PairedTest(
        [("baseline", list(baseline)), ("system", list(hypotheses))],
        {"BLEU": BLEU(lowercase=lowercase), "chrF": CHRF(lowercase=lowercase)},
        [list(references)],
        test_type="bs",
        n_samples=BOOTSTRAP_SAMPLES,
    )
    columns: Any  # of results, after a column of the systems' names
    signatures, columns = test()
    (bleu_baseline, bleu), (chrf_baseline, chrf) = columns["BLEU"], columns["chrF2"]
    return Comparison(
        bleu=bleu.score,
        baseline_bleu=bleu_baseline.score,
        bleu_p_value=bleu.p_value,
        chrf=chrf.score,
        baseline_chrf=chrf_baseline.score,
        chrf_p_value=chrf.p_value,
        compare_signature=str(signatures["BLEU"]),
    )
