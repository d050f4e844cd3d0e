"""A disk that becomes full ends a run in one sentence, and the run resumes when there is space."""

import shutil
from pathlib import Path
from types import SimpleNamespace

from lingua_flax.host import files
from lingua_flax.runs.checkpoint import saved_steps
from tests.command_server import run_here
from tests.processes import digests, metrics


def check_full_disk(done) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("the disk is full") == 1
    assert "what was saved before is intact: make space and run this again" in done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk_is_reported_in_one_sentence_and_the_run_resumes_later(trained, run, monkeypatch, tmp_path):
    """A limit on file sizes, which any user can set, stands for a full disk: not even the tokenizer fits.

    Then there is enough space for all but a checkpoint of 90 kB.
    """
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir)
    shutil.rmtree(workdir / "checkpoints" / "240")
    train = ["train", "--workdir", workdir]
    check_full_disk(run(Path(__file__).parent / "scripts" / "full_disk.py", *train))
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=50_000))
        check_full_disk(run_here(*train))
    assert saved_steps(workdir / "checkpoints")[-1] == 200
    done = run(*train)
    assert done.returncode == 0, done.stderr
    assert (metrics(workdir), digests(workdir)) == (metrics(trained[0]), digests(trained[0]))
