"""BLEU, chrF and TER by sacreBLEU, each with the signature of how it was computed."""

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.options.language_codes import language_code

BOOTSTRAP_SAMPLES = 1000
TOKENIZER_LANGUAGES = {
    "zh": "zh yue wuu",
    "ja-mecab": "ja",
    "ko-mecab": "ko",
    "char": "th km lo my bo dz",
}
MECAB_PACKAGES = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
log = logging.getLogger(__name__)


def bleu_tokenizer(wanted: str | None, language: str, references: Sequence[str]) -> str:
    """Returns the name of sacreBLEU's tokenizer: `wanted`, or else that of the language, given by its code.

    With 13a, a line without spaces is a single word, so that BLEU is 0 whatever the network does. Raises UserError if
    the package of the wanted tokenizer is not installed.
    """
    code = language_code(language)
    found = wanted or next((name for name, codes in TOKENIZER_LANGUAGES.items() if code in codes.split()), None)
    if found in MECAB_PACKAGES and not find_spec(MECAB_PACKAGES[found]):
        package = f"sacreBLEU's tokenizer {found} is not installed ({install_command(found[:2])})"
        if wanted:
            raise UserError(f"evaluation.tokenize: {package}; install it, or use char")
        log.warning("%s, so BLEU compares characters", package)
        return "char"
    if found:
        return found
    return "13a" if sum(" " in line.strip() for line in references) >= 0.1 * len(references) else "char"


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """Returns BLEU in percent, case-insensitive if `lowercase`."""
    return float(BLEU(lowercase=lowercase, tokenize=tokenize).corpus_score(list(hypotheses), [list(references)]).score)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> float:
    """Returns chrF2 (Popović 2015) in percent, case-insensitive if `lowercase`."""
    return float(CHRF(lowercase=lowercase).corpus_score(list(hypotheses), [list(references)]).score)


def make_metrics(*, tokenize: str, lowercase: bool, with_ter: bool) -> dict[str, Any]:
    """Returns sacreBLEU's metrics by the names of their scores; arguments as for `score`."""
    bleu, bleu_lowercase = (BLEU(lowercase=ignored, tokenize=tokenize) for ignored in (lowercase, True))
    metrics: dict[str, Any] = {"bleu": bleu, "bleu_lowercase": bleu_lowercase, "chrf": CHRF(lowercase=lowercase)}
    if with_ter:  # by default, TER ignores case, leaves punctuation attached, and takes a Chinese sentence for one word
        asian = tokenize not in ("13a", "intl")
        metrics["ter"] = TER(case_sensitive=not lowercase, normalized=True, asian_support=asian)
    return metrics


def score(
    hypotheses: Sequence[str],
    *references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
    with_ter: bool = False,
) -> dict[str, Any]:
    """Returns scores in percent and sacreBLEU's signatures, by their names in JSON (docs/reference/formats.md).

    Compares detokenized hypotheses with one or several unmodified references, ignoring case if `lowercase`. BLEU uses
    sacreBLEU's tokenizer `tokenize`; its interval is as wide as the middle 95% of bootstrap resamples (Koehn 2004). TER
    (Snover et al. 2006) is computed only `with_ter`, since it takes seconds for 1,000 captions, more for long lines.
    """
    streams = list(map(list, references))
    metrics = make_metrics(tokenize=tokenize, lowercase=lowercase, with_ter=with_ter)
    scores: dict[str, Any] = {}
    for name, metric in metrics.items():
        scores[name] = metric.corpus_score(hypotheses, streams).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    interval: Any = metrics["bleu"].corpus_score(hypotheses, streams, n_bootstrap=BOOTSTRAP_SAMPLES)
    mean, half = interval._mean, interval._ci  # not available otherwise
    low, high = (min(max(0.0, end), 100.0) for end in (mean - half, mean + half))
    return scores | {"bleu_low": low, "bleu_high": high, "sentences": len(hypotheses)}
