"""checkpoints/phrasebook, which is shipped: it can be read and keeps its scores, and commands leave it as it is."""

import json
import subprocess
import urllib.request

import pytest

from tests.conftest import ROOT
from tests.processes import start_command

SHIPPED = ROOT / "checkpoints" / "phrasebook"
SENTENCE = "I swam across the river to get to the other bank.\n"
MAX_SIZE = 3_000_000  # bytes


def stored(name):
    return json.loads((SHIPPED / name).read_text(encoding="utf-8"))


def test_keeps_its_scores(run, tmp_path):
    for split, score, tolerance in (("test", "bleu", 0.2), ("contrast", "contrast_right", 3)):
        now = tmp_path / f"{split}.json"
        done = run("evaluate", "--workdir", SHIPPED, "--split", split, "--json", now)
        assert done.returncode == 0, done.stderr
        assert json.loads(now.read_text(encoding="utf-8"))[score] >= stored(now.name)[score] - tolerance


def test_is_small():
    files = subprocess.run(["git", "ls-files", "-z", SHIPPED], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a clone")
    assert sum((ROOT / name).stat().st_size for name in files.stdout.split("\0") if name) <= MAX_SIZE


def test_commands_leave_the_clone_as_it_is(run, tmp_path):
    def status():
        return subprocess.run(["git", "status", "--porcelain", SHIPPED], cwd=ROOT, capture_output=True, text=True)

    before = status()
    if before.returncode:
        pytest.skip("not a clone")
    network = ("--workdir", SHIPPED)
    files = {name: tmp_path / name for name in ("in.en", "in.fr")}
    for path in files.values():
        path.write_text(SENTENCE, encoding="utf-8")
    translated = run("translate", *network, input=SENTENCE)
    assert translated.stdout == "J'ai traversé la rivière à la nage pour atteindre l'autre rive.\n"
    assert run("evaluate", *network, "--source", files["in.en"], "--reference", files["in.fr"]).returncode == 0
    pair = ("--source", files["in.en"], "--reference", files["in.fr"])
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
    assert status().stdout == before.stdout
