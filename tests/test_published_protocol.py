"""The protocol in which results on Multi30k are published, and the program that scores runs by it."""

import gzip
import json

import pytest

from benchmarks.multi30k import published_score

REFERENCE = ["Ein „T-Shirt“, rot."]  # seven tokens: ein " t-shirt " , rot .


@pytest.mark.parametrize("same", ['ein "t-shirt", rot.', "Ein „T-Shirt“, ROT."])
def test_case_and_kinds_of_quotes_do_not_count(same):
    score, signature, length = published_score([same], REFERENCE, "de")
    assert score == pytest.approx(100.0)
    assert length == 7  # a dash splits nothing
    assert "tok:none" in signature


def test_a_wrong_word_counts_as_by_hand():
    right_of_each_order = (6 / 7) * (4 / 6) * (3 / 5) * (2 / 4)  # n-grams without the word: 1, 2, 3, 4 tokens long
    score, _, _ = published_score(["Ein „T-Shirt“, blau."], REFERENCE, "de")
    assert score == pytest.approx(100.0 * right_of_each_order**0.25)


def test_references_are_as_long_as_published(multi30k):
    with gzip.open(multi30k / "test_2016_flickr.de.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    score, _, length = published_score(lines, lines, "de")
    assert length == 12103
    assert score == pytest.approx(100.0)


@pytest.mark.slow
def test_the_program_scores_runs_as_evaluate_does(multi30k, run, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    options = ["--data.directory", multi30k, "--training.num-steps", 2, "--training.eval-every", 0]
    options += ["--training.tokens-per-batch", 512, "--model.embed-dim", 16, "--model.mlp-dim", 16]
    for seed, folder in enumerate(folders):
        more = ["--tokenizer.model-file", folders[0] / "tokenizer.model"] if seed else []
        done = run(
            "train.py", "--config", "configs/multi30k_en_de.toml", "--workdir", folder, *options, *more,
            "--training.seed", seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    decoding = ["--beam-size", 1, "--max-decoding-length", 4, "--checkpoint", "last"]
    scores = tmp_path / "scores.json"
    done = run("evaluate.py", "--workdir", folders[1], *decoding, "--json", scores)
    assert done.returncode == 0, done.stderr
    found = json.loads(scores.read_text())

    done = run("benchmarks/multi30k.py", *folders, "--baseline", folders[0], *decoding, "--split", "test")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    columns, _, *runs = rows
    assert [row[1] for row in runs] == ["0", "1"]
    of_second = dict(zip(columns, runs[1], strict=True))
    assert of_second["BLEU (95%)"].startswith(f"{found['bleu']:.2f} ")
    assert of_second["chrF"] == f"{found['chrf']:.2f}"
    assert of_second["reference tokens"] == "12,103"
    assert 0 <= float(of_second["p"]) <= 1
    assert found["bleu_signature"] in done.stdout


def test_another_corpus_is_an_error(run, tmp_path):
    done = run("benchmarks/multi30k.py", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
