"""The protocol with which papers report BLEU on Multi30k, such as 41.02 (Wu et al. 2021, test_2016_flickr, German).

The text is in lower case, with normalized punctuation, and tokenized by Moses without aggressive dash splitting.
"""

from sacrebleu.metrics import BLEU

# Number of reference tokens under this protocol (README of multi30k/dataset) by target language and split. A score with
# any other number of reference tokens is not comparable with published ones.
REFERENCE_LENGTHS = {
    ("de", "test"): 12103,
    ("de", "test_2017_flickr"): 10758,
    ("de", "test_2017_mscoco"): 5158,
    ("fr", "test"): 13988,
    ("fr", "test_2017_flickr"): 12596,
    ("fr", "test_2017_mscoco"): 5710,
}


class PublishedBLEU(BLEU):
    """BLEU of detokenized lines in a language such as "de" under the published protocol."""

    def __init__(self, language: str):
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # slow to import, and few evaluations need it

        super().__init__(tokenize="none", force=True)  # force: no warning about tokenized lines
        self._normalizer, self._tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def _preprocess_segment(self, sent: str) -> str:
        normalized = self._normalizer.normalize(sent.lower())
        return self._tokenizer.tokenize(normalized, aggressive_dash_splits=False, return_str=True)


def comparability_note(reference_length: int, language: str, split: str) -> str:
    """Returns a note on whether a score on a split of Multi30k is comparable with published ones."""
    published = REFERENCE_LENGTHS.get((language, split))
    if published is None:
        return f"{reference_length:,} reference tokens; no published number to compare with"
    if reference_length != published:
        return f"NOT comparable with published scores: {reference_length:,} reference tokens instead of {published:,}"
    return f"{reference_length:,} reference tokens, as published"
