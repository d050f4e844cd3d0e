"""The protocol of published results on Multi30k, and the program that scores runs with it."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.multi30k import Row, shown_means, shown_notes
from lingua_flax.evaluation.multi30k_protocol import comparability_note, score_published
from lingua_flax.options.schema import Config

REFERENCE = ["Ein „T-Shirt“, rot."]  # 7 tokens: ein " t-shirt " , rot .


@pytest.mark.parametrize("same", ['ein "t-shirt", rot.', "Ein „T-Shirt“, ROT."])
def test_case_and_kind_of_quotation_marks_are_ignored(same):
    result = score_published([same], REFERENCE, "de")
    assert result.published_bleu == pytest.approx(100.0)
    assert result.published_reference_length == 7  # a hyphen does not split a word
    assert "tok:none" in result.published_signature


def test_a_wrong_word_by_hand():
    precisions = (6 / 7) * (4 / 6) * (3 / 5) * (2 / 4)  # of n-grams of 1, 2, 3 and 4 tokens
    result = score_published(["Ein „T-Shirt“, blau."], REFERENCE, "de")
    assert result.published_bleu == pytest.approx(100.0 * precisions**0.25)


@pytest.mark.parametrize("language", ["de", "fr"])
def test_references_have_the_published_length(multi30k, language):
    with gzip.open(multi30k / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    result = score_published(lines, lines, language)
    assert result.published_bleu == pytest.approx(100.0)
    assert comparability_note(result.published_reference_length, language, "test").endswith("as published")


@pytest.mark.slow
def test_benchmark_scores_runs_like_evaluate(multi30k, run, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    options = ["--data.directory", multi30k, "--training.num-steps", 2, "--training.eval-every", 0]
    options += ["--optimizer.warmup-steps", 1, "--config", "configs/multi30k_en_de.toml"]
    options += ["--training.tokens-per-batch", 512, "--model.embed-dim", 16, "--model.mlp-dim", 16]
    for seed, folder in enumerate(folders):
        more = ["--tokenizer.model-file", folders[0] / "tokenizer.model"] if seed else []
        done = run("train", "--workdir", folder, "--training.seed", seed, *options, *more)
        assert done.returncode == 0, done.stderr
    decoding = ["--beam-size", 1, "--max-decoding-length", 4, "--checkpoint", "last"]
    expected = []
    for workdir, *more in ([folders[1]], [folders[0], "--ensemble", folders[1]]):
        scores = tmp_path / "scores.json"
        done = run("evaluate", "--workdir", workdir, *more, *decoding, "--json", scores)
        assert done.returncode == 0, done.stderr
        expected.append(json.loads(scores.read_text()))

    options = ["--baseline", folders[0], *decoding, "--split", "test", "--ensemble"]
    done = run("benchmarks/multi30k.py", *folders, *options)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    columns, _, *runs = rows
    assert [row[1] for row in runs] == ["0", "1", "2 networks"]
    for cells, scores in zip(runs[1:], expected, strict=True):
        row = dict(zip(columns, cells, strict=True))
        assert row["BLEU (95%)"].startswith(f"{scores['bleu']:.2f} ")
        assert row["chrF"] == f"{scores['chrf']:.2f}"
        assert row["reference tokens"] == "12,103"
        assert 0 <= float(row["p"]) <= 1
        assert scores["bleu_signature"] in done.stdout


def row(seed, bleu, published, length=12103):
    config = Config.model_validate({"data": {"name": "multi30k", "target_language": "de"}, "training": {"seed": seed}})
    signatures = {f"{name}_signature": name for name in ("bleu", "bleu_lowercase", "chrf")}
    scores = {"bleu": bleu, "bleu_low": 1.0, "bleu_high": 2.0, "bleu_lowercase": bleu + 1, "chrf": 60.0} | signatures
    scores |= {"published_bleu": published, "published_signature": "tok:none", "published_reference_length": length}
    return Row([Path(f"run{seed}")], config, "de", "test", scores)


def test_runs_that_differ_only_in_seed_share_a_row_of_means():
    """40 and 42 have the mean 41 and the deviation sqrt(2). A seed counts once, and another config is another group."""
    rows = [row(1, 40.0, 41.0), row(2, 42.0, 44.0), row(2, 42.0, 44.0)]
    other = rows[0].config.model_copy(update={"model": rows[0].config.model.model_copy(update={"mlp_dim": 7})})
    (means,) = shown_means([*rows, rows[0]._replace(config=other)])
    cells = [cell.strip() for cell in means.split("|")]
    assert cells[1:8] == ["run1", "n = 2", "test", "41.00 ± 1.41", "42.00 ± 1.41", "60.00 ± 0.00", "42.50 ± 2.12"]
    assert not list(shown_means(rows[:1]))
    assert not list(shown_means([rows[0], rows[1]._replace(workdirs=[Path("run2"), Path("run3")])]))  # an ensemble


def test_other_references_are_reported_as_not_comparable():
    assert not any("NOT comparable" in note for note in shown_notes([row(1, 40.0, 41.0)]))
    assert any("12,102 reference tokens instead of 12,103" in note for note in shown_notes([row(1, 40.0, 41.0, 12102)]))
    french = row(1, 40.0, 41.0, 13988)._replace(language="fr")  # a model for both, asked for French
    assert any("13,988 reference tokens, as published" in note for note in shown_notes([french]))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ([], ["its corpus is", "not multi30k"]),
        (["--split", "test"], ["not multi30k"]),
        (["--json", "x.json"], ["--json has no effect"]),
        (["--score", "x.de"], ["--score has no effect"]),
        (["--beam-sise", 3], ["--beam-sise"]),
        (["--ensemble"], ["--ensemble needs two or more different workdirs"]),
    ],
)
def test_invalid_command_is_reported_in_one_sentence(run, trained, options, parts):
    done = run("benchmarks/multi30k.py", trained[0], trained[0], *options)
    assert done.returncode == 2
    assert all(part in done.stderr for part in parts), done.stderr
    assert "Traceback" not in done.stderr


def test_folder_that_is_not_a_workdir_is_refused(run, tmp_path):
    done = run("benchmarks/multi30k.py", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
