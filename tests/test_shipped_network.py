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


def score(run, file, split, name, *options):
    """Returns a score of the network, and the one that is stored with it."""
    done = run("evaluate", "--workdir", SHIPPED, "--split", split, "--json", file, *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text(encoding="utf-8"))[name] for path in (file, SHIPPED / f"{split}.json")]


def test_is_small():
    assert sum((ROOT / name).stat().st_size for name in git("ls-files", "-z").split("\0") if name) <= 3_000_000


def test_keeps_its_scores_and_the_clone_stays_as_it_is(run, tmp_path):
    before = git("status", "--porcelain")
    translated = run("translate", "--workdir", SHIPPED, input=SENTENCE)
    assert translated.stdout == "J'ai traversé la rivière à la nage pour atteindre l'autre rive.\n"
    greedy, stored = score(run, tmp_path / "test.json", "test", "bleu", "--beam-size", 1)
    assert greedy >= stored - 2
    for name in ("in.en", "in.fr"):
        (tmp_path / name).write_text(SENTENCE)
    assert run("compare", SHIPPED, "--source", tmp_path / "in.en", "--reference", tmp_path / "in.fr").returncode == 0
    trained = run("train", "--workdir", SHIPPED)
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "--init-from" in trained.stdout
    assert git("status", "--porcelain") == before


@pytest.mark.slow
def test_keeps_all_scores_and_is_exported_and_served(run, tmp_path):
    before = git("status", "--porcelain")
    for split, name, tolerance in (("test", "bleu", 0.2), ("contrast", "contrast_right", 3)):
        found, stored = score(run, tmp_path / "scores.json", split, name)
        assert found >= stored - tolerance
    assert run("export", "--workdir", SHIPPED, "--format", "html", "--output", tmp_path / "x.html").returncode == 0
    with start_command("serve", "--workdir", SHIPPED, "--port", 0) as server:
        url = next(line.split()[-1] for line in server.stderr if line.startswith("listening on "))
        assert "ready\n" in server.stderr
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
        server.terminate()
    assert git("status", "--porcelain") == before
