"""The protocol in which papers report BLEU on Multi30k, such as 41.02 (Wu et al. 2021, test_2016_flickr, German).

BLEU of lower-case text with normalized punctuation, tokenized as Moses does without splitting dashes aggressively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Tokens of the references under this protocol (the README of multi30k/dataset): with any other number, a score cannot
# be compared with published ones.
REFERENCE_LENGTHS = {
    ("de", "test"): 12103,
    ("de", "test_2017_flickr"): 10758,
    ("de", "test_2017_mscoco"): 5158,
    ("fr", "test"): 13988,
    ("fr", "test_2017_flickr"): 12596,
    ("fr", "test_2017_mscoco"): 5710,
}


@dataclass(frozen=True)
class PublishedScore:
    """BLEU in percent under the published protocol, its signature, and the number of reference tokens."""

    published_bleu: float
    published_signature: str
    published_reference_length: int


def score_published(hypotheses: Sequence[str], references: Sequence[str], language: str) -> PublishedScore:
    """Scores detokenized hypotheses against untouched references, line by line; language: of both, such as "de"."""
    from sacrebleu.metrics import BLEU  # the two take half a second to import, and few evaluations need them
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def tokenize(line: str) -> str:
        return tokenizer.tokenize(normalizer.normalize(line.lower()), aggressive_dash_splits=False, return_str=True)

    metric = BLEU(tokenize="none", force=True)  # force: no warning that the lines look tokenized, which they are
    result = metric.corpus_score([tokenize(line) for line in hypotheses], [[tokenize(line) for line in references]])
    return PublishedScore(result.score, str(metric.get_signature()), result.ref_len)


def comparability(reference_length: int, language: str, split: str) -> str:
    """Whether a score on a split of Multi30k can be compared with published ones, for people."""
    published = REFERENCE_LENGTHS.get((language, split))
    if published is None:
        return f"{reference_length:,} reference tokens; no number was published to compare with"
    if reference_length != published:
        return f"NOT comparable with published scores: {reference_length:,} reference tokens instead of {published:,}"
    return f"{reference_length:,} reference tokens, as published"
