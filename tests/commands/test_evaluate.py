"""lingua-flax evaluate: scores, files and the report."""

import gzip
import json
import re
from types import SimpleNamespace

import pytest

from lingua_flax.evaluation.evaluate import EvaluationSet, evaluate, print_evaluation
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.runs.checkpoint import read_metadata
from tests.processes import metrics


def test_split_is_scored_and_written_to_reproducible_files(trained, toy, succeed, tmp_path):
    hypotheses, scores = tmp_path / "hyps.txt.gz", tmp_path / "scores.json"
    done = succeed("evaluate", "--workdir", trained[0], "--output", hypotheses, "--json", scores)
    first = json.loads(scores.read_text())
    assert first["bleu_low"] < first["bleu"] < first["bleu_high"]
    assert first["bleu"] > 50
    assert first["checkpoint_step"] == read_metadata(trained[0] / "checkpoints", 240)["best_step"]
    assert f"{first['bleu']:.2f}" in done.stdout
    assert first["bleu_signature"] in done.stdout
    for name, side in (("source", "en"), ("reference", "fr")):
        written = gzip.decompress((tmp_path / f"hyps.{name}.txt.gz").read_bytes())
        assert written == (toy.parent / f"test.{side}").read_bytes()
    files = ["--compare", hypotheses, "--output", tmp_path / "again.gz", "--json", scores]
    succeed("evaluate", "--workdir", trained[0], *files)
    again = json.loads(scores.read_text())
    assert again["baseline_bleu"] == again["bleu"] == first["bleu"]
    assert (tmp_path / "again.gz").read_bytes() == hypotheses.read_bytes()


def test_validation_split_has_the_score_of_the_validation(trained, succeed, tmp_path):
    options = ["--checkpoint", 240, "--split", "validation", "--beam-size", 1, "--json", tmp_path / "scores.json"]
    succeed("evaluate", "--workdir", trained[0], *options)
    expected = metrics(trained[0])[-1]["validation_bleu"]
    assert json.loads((tmp_path / "scores.json").read_text())["bleu"] == pytest.approx(expected)


def test_decoding_speed_excludes_compilation(monkeypatch, capsys):
    """The translator compiles in `warm_up`; test_translator shows that nothing is compiled afterwards."""
    now = 100.0

    def warm_up(lines, options):
        nonlocal now
        now += 40.0

    def translate(lines, options, after_batch):
        nonlocal now
        now += 2.0
        return [SimpleNamespace(text=line) for line in lines]

    monkeypatch.setattr("lingua_flax.evaluation.evaluate.time", SimpleNamespace(monotonic=lambda: now))
    tokenizer = SimpleNamespace(lowercase=False)
    methods = {"warm_up": warm_up, "translate_sentences": translate}
    translator = SimpleNamespace(**methods, tokenizer=tokenizer, num_parameters=7, step=1)
    data = EvaluationSet("three lines", ["a", "b", "c"], ["a", "b", "c"])
    translations, scores = evaluate(translator, data, DecodingOptions())
    assert (scores["seconds"], scores["compile_seconds"], scores["sentences_per_second"]) == (2.0, 40.0, 1.5)
    print_evaluation("w", data, translations, scores)
    table = capsys.readouterr().out
    assert "2.0 s, 1.5 a second" in table
    assert re.search(r"│ compilation +│ 40\.0 s +│", table)
