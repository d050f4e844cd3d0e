"""Minimum Bayes risk decoding, compared with sacreBLEU."""

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

from lingua_flax.translation.minimum_risk import by_expected_chrf, chrf_matrix
from tests.helpers.commands import succeed

TEXTS = ["the cat sat on the mat", "the cat sat on a mat", "cat", "a", "", "e i", "mat the on sat cat the", "ã", "cat"]
LINES = ["one two three.", "seven nine eight two.", "seven."]


def sacrebleu_matrix(texts):
    return np.array([[CHRF().sentence_score(text, [other]).score / 100 for other in texts] for text in texts])


def test_chrf_of_each_with_each_is_that_of_sacrebleu():
    np.testing.assert_allclose(chrf_matrix(TEXTS), sacrebleu_matrix(TEXTS), atol=1e-12)
    assert by_expected_chrf(["cat", "the mat", "cats"]) == [2, 0, 1]


def test_the_sample_that_is_most_like_all_is_chosen(trained, run, tmp_path):
    """Those of the command are the seven samples that are drawn without the option, in another order."""
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    options = ["--workdir", trained[0], "--input", tmp_path / "in", "--temperature", 2.0, "--seed", 3]
    drawn = succeed(run, "translate", *options, "--num-hypotheses", 7).stdout.splitlines()
    chosen = succeed(run, "translate", *options, "--mbr-samples", 7).stdout.splitlines()
    for number, best in enumerate(chosen, 1):
        samples = [text for line, _, text in (row.split("\t") for row in drawn) if line == str(number)]
        assert len(samples) == 7
        expected = dict(zip(samples, sacrebleu_matrix(samples).mean(axis=1), strict=True))
        assert expected[best] == pytest.approx(max(expected.values()))
    assert run("translate", *options, "--mbr-samples", 2, "--num-hypotheses", 3).returncode == 2
