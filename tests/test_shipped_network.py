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


def test_is_small_and_keeps_its_scores(run, tmp_path):
    files = git("ls-files", "-z").split("\0")
    assert sum((ROOT / name).stat().st_size for name in files if name) <= 3_000_000
    for split, score, tolerance in (("test", "bleu", 0.2), ("contrast", "contrast_right", 3)):
        now = tmp_path / f"{split}.json"
        done = run("evaluate", "--workdir", SHIPPED, "--split", split, "--json", now)
        assert done.returncode == 0, done.stderr
        stored, found = (json.loads(path.read_text(encoding="utf-8")) for path in (SHIPPED / now.name, now))
        assert found[score] >= stored[score] - tolerance


def test_commands_leave_the_clone_as_it_is(run, tmp_path):
    before = git("status", "--porcelain")
    network = ("--workdir", SHIPPED)
    for name in ("in.en", "in.fr"):
        (tmp_path / name).write_text(SENTENCE)
    pair = ("--source", tmp_path / "in.en", "--reference", tmp_path / "in.fr")
    translated = run("translate", *network, input=SENTENCE)
    assert translated.stdout == "J'ai traversé la rivière à la nage pour atteindre l'autre rive.\n"
    assert run("evaluate", *network, *pair).returncode == 0
    assert run("compare", SHIPPED, *pair).returncode == 0
    assert run("export", *network, "--format", "html", "--output", tmp_path / "x.html").returncode == 0
    trained = run("train", *network)
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "--init-from" in trained.stdout
    with start_command("serve", *network, "--port", 0) as server:
        url = next(line.split()[-1] for line in server.stderr if line.startswith("listening on "))
        assert "ready\n" in server.stderr
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
        server.terminate()
    assert git("status", "--porcelain") == before
