"""Training on a real corpus: the BLEU after 1,500 steps."""

import gzip
import json

import pytest
import sacrebleu


@pytest.mark.slow
def test_1500_steps_score_20_bleu(multi30k, run, tmp_path):
    options = ["--data.directory", multi30k, "--training.num-steps", 1500, "--optimizer.warmup-steps", 1000]
    options += ["--config", "configs/multi30k_en_de.toml", "--training.eval-every", 0]
    hypotheses, scores = tmp_path / "hyps.de", tmp_path / "scores.json"
    done = run("train", "--workdir", tmp_path / "w", *options, timeout=3 * 3600)
    assert done.returncode == 0, done.stderr
    done = run("evaluate", "--workdir", tmp_path / "w", "--output", hypotheses, "--json", scores)
    assert done.returncode == 0, done.stderr
    result = json.loads(scores.read_text())
    assert result["sentences"] == 1000
    assert result["bleu"] >= 20
    references = gzip.decompress((multi30k / "test_2016_flickr.de.gz").read_bytes()).decode().splitlines()
    lines = hypotheses.read_text(encoding="utf-8").splitlines()
    assert result["bleu"] == pytest.approx(sacrebleu.corpus_bleu(lines, [references]).score)
