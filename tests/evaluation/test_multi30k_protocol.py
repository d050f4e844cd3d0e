"""The protocol of published results on Multi30k."""

import gzip

import pytest

from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU, comparability_note

REFERENCE = ["Ein „T-Shirt“, rot."]  # 7 tokens: ein " t-shirt " , rot .


def test_only_case_and_kind_of_quotation_marks_are_ignored():
    metric = PublishedBLEU("de")
    same = metric.corpus_score(['ein "T-Shirt", ROT.'], [REFERENCE])
    assert same.score == pytest.approx(100.0)
    assert same.ref_len == 7  # a hyphen does not split a word
    assert "tok:none" in str(metric.get_signature())
    precisions = (6 / 7) * (4 / 6) * (3 / 5) * (2 / 4)  # of n-grams of 1, 2, 3 and 4 tokens
    wrong = metric.corpus_score(["Ein „T-Shirt“, blau."], [REFERENCE])
    assert wrong.score == pytest.approx(100.0 * precisions**0.25)


@pytest.mark.parametrize("language", ["de", "fr"])
def test_references_have_the_published_length(multi30k, language):
    lines = gzip.decompress((multi30k / f"test_2016_flickr.{language}.gz").read_bytes()).decode().splitlines()
    result = PublishedBLEU(language).corpus_score(lines, [lines])
    assert result.score == pytest.approx(100.0)
    assert comparability_note(result.ref_len, language, "test").endswith("as published")


def test_other_references_are_reported_as_not_comparable():
    assert "NOT comparable" in comparability_note(12102, "de", "test")
    assert comparability_note(12103, "de", "test").endswith("as published")
    assert "no published number" in comparability_note(12103, "de", "validation")
