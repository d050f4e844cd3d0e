"""checkpoints/phrasebook, which is shipped: it is small and keeps its scores, and commands leave it as it is."""

import json
import subprocess
import urllib.request

import pytest

from tests.conftest import ROOT
from tests.processes import start_command

SHIPPED = ROOT / "checkpoints" / "phrasebook"
SENTENCE = "I swam across the river to get to the other bank.\n"


def git(*arguments):
    done = subprocess.run(["git", *arguments, SHIPPED], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone")
    return done.stdout


def test_is_small():
    assert sum((ROOT / name).stat().st_size for name in git("ls-files", "-z").split("\0") if name) <= 3_000_000


def test_keeps_its_scores_and_the_clone_stays_as_it_is(run, tmp_path):
    before = git("status", "--porcelain")
    translated = run("translate", "--workdir", SHIPPED, input=SENTENCE)
    assert translated.stdout == "J'ai traversé la rivière à la nage pour atteindre l'autre rive.\n"
    for split, score, tolerance in (("test", "bleu", 0.2), ("contrast", "contrast_right", 3)):
        done = run("evaluate", "--workdir", SHIPPED, "--split", split, "--json", tmp_path / "scores.json")
        assert done.returncode == 0, done.stderr
        found, stored = (json.loads(path.read_text()) for path in (tmp_path / "scores.json", SHIPPED / f"{split}.json"))
        assert found[score] >= stored[score] - tolerance
    for name in ("in.en", "in.fr"):
        (tmp_path / name).write_text(SENTENCE)
    assert run("compare", SHIPPED, "--source", tmp_path / "in.en", "--reference", tmp_path / "in.fr").returncode == 0
    trained = run("train", "--workdir", SHIPPED)
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "--init-from" in trained.stdout
    assert git("status", "--porcelain") == before


@pytest.mark.slow
def test_export_and_server_leave_the_clone_as_it_is(run, tmp_path):
    before = git("status", "--porcelain")
    assert run("export", "--workdir", SHIPPED, "--format", "html", "--output", tmp_path / "x.html").returncode == 0
    with start_command("serve", "--workdir", SHIPPED, "--port", 0) as server:
        url = next(line.split()[-1] for line in server.stderr if line.startswith("listening on "))
        assert "ready\n" in server.stderr
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
        server.terminate()
    assert git("status", "--porcelain") == before
