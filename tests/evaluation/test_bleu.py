"""Scores: BLEU and TER by hand, and by sacreBLEU itself in other languages and cases."""

import math
import re

import pytest
import sacrebleu

from lingua_flax.evaluation.bleu import bleu_tokenizer, corpus_bleu, score
from lingua_flax.evaluation.evaluate import sample_indices
from lingua_flax.host.errors import UserError


def test_bleu_by_hand():
    """Hypothesis "the cat sat on the mat .": 7 tokens against 8, precisions 7/7, 5/6, 3/5, 1/4, brevity e^(1 - 8/7)."""
    expected = math.exp(1 - 8 / 7) * (7 / 7 * 5 / 6 * 3 / 5 * 1 / 4) ** 0.25 * 100
    assert corpus_bleu(["the cat sat on the mat."], ["the cat sat there on the mat."]) == pytest.approx(expected)


def test_tokenizer_follows_the_target_language():
    tokenizers = {"13a": "de pt-BR", "zh": "zh zh_Hant cmn ZHO-CN", "char": "th tha km lo mya bo"}
    for tokenizer, languages in tokenizers.items():
        for language in languages.split():
            assert bleu_tokenizer(None, language, ["two words"]) == tokenizer
            assert bleu_tokenizer("intl", language, ["two words"]) == "intl"


def test_mecab_is_used_where_it_is_installed(monkeypatch, caplog):
    monkeypatch.setattr("lingua_flax.evaluation.bleu.find_spec", lambda package: package == "MeCab")
    assert bleu_tokenizer(None, "ja", ["二言"]) == "ja-mecab"
    assert not caplog.records
    assert bleu_tokenizer(None, "ko-KR", ["두 단어"]) == "char"
    assert "so BLEU compares characters" in caplog.text
    with pytest.raises(UserError, match=r"evaluation.tokenize: .* ko-mecab is not installed \(pip install .*\[ko\]"):
        bleu_tokenizer("ko-mecab", "ko", [])


def test_references_without_spaces_are_compared_by_characters():
    """An unknown language, or a list of single words: with 13a, BLEU would be 0 whatever the network does."""
    lines = ["零一二三。", "四五六七。"] * 5
    assert bleu_tokenizer(None, "xx", lines) == "char"
    assert bleu_tokenizer(None, "xx", [*lines, "two words"]) == "char"
    assert bleu_tokenizer(None, "xx", [*lines, "two words", "two words"]) == "13a"
    assert corpus_bleu(lines, lines, tokenize="char") == pytest.approx(100)
    assert corpus_bleu(lines, lines) == 0


def test_chinese_scores_are_those_of_sacrebleu_by_itself():
    hypotheses, references = ["零一二三。", "四五六。"], ["零一二三。", "四五六七。"]
    scores = score(hypotheses, references, tokenize="zh", with_ter=True)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score)
    assert scores["ter"] == pytest.approx(100 / 10)  # one of ten characters is missing
    for name in ("bleu", "bleu_lowercase"):
        assert "tok:zh" in scores[f"{name}_signature"]


def test_ter_by_hand():
    """One word is missing of the seven words and the full stop of the reference; another case is another word."""
    reference = ["The cat sat there on the mat."]
    assert score(["The cat sat on the mat."], reference, with_ter=True)["ter"] == pytest.approx(100 / 8)
    assert score(["the cat sat there on the mat."], reference, with_ter=True)["ter"] == pytest.approx(100 / 8)
    assert score(["the cat sat there on the mat."], reference, lowercase=True, with_ter=True)["ter"] == 0
    assert "ter" not in score(reference, reference)


def test_interval_is_that_of_sacrebleu_within_what_a_score_can_be():
    """Few of the resamples have none of the lines that are wrong, or right, so the middle ones are not symmetric."""
    good, bad = "the cat sat there on the mat.", "rien du tout, mais sept mots."
    for wrong, is_cut in ((1, (False, True)), (20, (False, False)), (39, (True, False))):
        hypotheses, references = [bad] * wrong + [good] * (40 - wrong), [good] * 40
        scores = score(hypotheses, references)
        of_sacrebleu = sacrebleu.BLEU().corpus_score(hypotheses, [references], n_bootstrap=1000)
        ends = of_sacrebleu._mean - of_sacrebleu._ci, of_sacrebleu._mean + of_sacrebleu._ci
        assert (ends[0] < 0, ends[1] > 100) == is_cut
        assert (scores["bleu_low"], scores["bleu_high"]) == (max(ends[0], 0), min(ends[1], 100))


def test_lowercase_scores_ignore_case():
    """The hypotheses differ from the references only in case."""
    hypotheses = ["a dog sleeps in the old house.", "nobody knows the way back home."] * 5
    references = ["A dog sleeps in the old House.", "Nobody knows the way back home."] * 5
    with_case = score(hypotheses, references)
    assert with_case["bleu"] == corpus_bleu(hypotheses, references) < 90
    assert with_case["bleu_lowercase"] == pytest.approx(100)
    scores = score(hypotheses, references, lowercase=True)
    for name in ("bleu", "bleu_lowercase", "bleu_low", "bleu_high", "chrf"):
        assert scores[name] == pytest.approx(100)
    assert scores["bleu_signature"] == scores["bleu_lowercase_signature"] == with_case["bleu_lowercase_signature"]
    signatures = (with_case["bleu_signature"], scores["bleu_signature"], scores["chrf_signature"])
    assert [re.search("case:(lc|mixed)", each)[1] for each in signatures] == ["mixed", "lc", "lc"]


def test_samples_are_evenly_spaced():
    given = [(1000, 5), (7, 3), (2, 5), (0, 5)]
    assert [list(sample_indices(*each)) for each in given] == [[0, 200, 400, 600, 800], [0, 2, 4], [0, 1], []]
