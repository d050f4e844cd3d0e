"""The protocol of published results on Multi30k, and what compare shows of it."""

import gzip
import json

import pytest

from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU, comparability_note

REFERENCE = ["Ein „T-Shirt“, rot."]  # 7 tokens: ein " t-shirt " , rot .


def score_published(hypotheses, references, language):
    metric = PublishedBLEU(language)
    return metric.corpus_score(hypotheses, [references]), str(metric.get_signature())


@pytest.mark.parametrize("same", ['ein "t-shirt", rot.', "Ein „T-Shirt“, ROT."])
def test_case_and_kind_of_quotation_marks_are_ignored(same):
    result, signature = score_published([same], REFERENCE, "de")
    assert result.score == pytest.approx(100.0)
    assert result.ref_len == 7  # a hyphen does not split a word
    assert "tok:none" in signature


def test_a_wrong_word_by_hand():
    precisions = (6 / 7) * (4 / 6) * (3 / 5) * (2 / 4)  # of n-grams of 1, 2, 3 and 4 tokens
    result, _ = score_published(["Ein „T-Shirt“, blau."], REFERENCE, "de")
    assert result.score == pytest.approx(100.0 * precisions**0.25)


@pytest.mark.parametrize("language", ["de", "fr"])
def test_references_have_the_published_length(multi30k, language):
    with gzip.open(multi30k / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    result, _ = score_published(lines, lines, language)
    assert result.score == pytest.approx(100.0)
    assert comparability_note(result.ref_len, language, "test").endswith("as published")


@pytest.mark.parametrize(("length", "note"), [(12103, "as published"), (12102, "NOT comparable")])
def test_other_references_are_reported_as_not_comparable(length, note):
    assert note in comparability_note(length, "de", "test")
    assert "no published number" in comparability_note(length, "de", "validation")


@pytest.mark.slow
def test_compare_scores_runs_like_evaluate(multi30k, run, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    options = ["--data.directory", multi30k, "--training.num-steps", 2, "--training.eval-every", 0]
    options += ["--optimizer.warmup-steps", 1, "--config", "configs/multi30k_en_de.toml"]
    options += ["--training.tokens-per-batch", 512, "--model.embed-dim", 16, "--model.mlp-dim", 16]
    for seed, folder in enumerate(folders):
        done = run("train", "--workdir", folder, "--training.seed", seed, *options)
        assert done.returncode == 0, done.stderr
    decoding = ["--beam-size", 1, "--max-decoding-length", 4, "--checkpoint", "last"]
    files = tmp_path / "scores.json", tmp_path / "compared.json"
    done = run("evaluate", "--workdir", folders[1], *decoding, "--json", files[0])
    assert done.returncode == 0, done.stderr
    expected = json.loads(files[0].read_text())
    done = run("compare", folders[0], "--baseline", folders[1], *decoding, "--json", files[1])
    assert done.returncode == 0, done.stderr
    metrics = json.loads(files[1].read_text())["metrics"]["multi30k, test"]
    for name in ("bleu", "chrf", "published_bleu"):
        assert metrics[name]["scores"]["baseline"] == [pytest.approx(expected[name])]
    assert "- 1,000 sentences; 12,103 reference tokens, as published" in done.stdout
