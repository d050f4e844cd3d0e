"""Training on a real corpus: the BLEU after 1,500 steps, and the same result bit for bit after a kill."""

import gzip
import json
import signal
import subprocess

import pytest
import sacrebleu

from lingua_flax.runs.checkpoint import saved_steps
from tests.processes import digests, metrics, start, wait_for

CONFIG = "configs/multi30k_en_de.toml"
HUNG_AFTER = 3 * 3600  # seconds after which a training process counts as hung


@pytest.mark.slow
def test_1500_steps_score_20_bleu_and_survive_a_kill_bit_for_bit(multi30k, run, tmp_path):
    """There is a validation between the kill and the end."""
    options = ["--data.directory", multi30k, "--training.num-steps", 1500, "--training.checkpoint-every", 500]
    options += ["--optimizer.warmup-steps", 1000, "--training.eval-every", 1000]
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    process = start(CONFIG, killed, *options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(
        process, lambda: 500 in saved_steps(killed / "checkpoints") and metrics(killed)[-1]["step"] >= 700, HUNG_AFTER
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    for workdir in (uninterrupted, killed):
        done = run("train", "--config", CONFIG, "--workdir", workdir, *options, timeout=HUNG_AFTER)
        assert done.returncode == 0, done.stderr
    assert "resuming from step 500" in done.stderr
    assert [line["step"] for line in metrics(killed) if "loss" in line] == list(range(1, 1501))
    assert metrics(killed) == metrics(uninterrupted)
    assert digests(killed) == digests(uninterrupted)

    hypotheses, scores = tmp_path / "hyps.de", tmp_path / "scores.json"
    done = run("evaluate", "--workdir", killed, "--output", hypotheses, "--json", scores)
    assert done.returncode == 0, done.stderr
    result = json.loads(scores.read_text())
    assert result["sentences"] == 1000
    assert result["bleu"] >= 20
    references = gzip.decompress((multi30k / "test_2016_flickr.de.gz").read_bytes()).decode().splitlines()
    lines = hypotheses.read_text(encoding="utf-8").splitlines()
    assert result["bleu"] == pytest.approx(sacrebleu.corpus_bleu(lines, [references]).score)
