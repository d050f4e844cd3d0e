"""A disk that becomes full ends a run in one sentence, and the run resumes when there is space."""

import resource
import shutil
from types import SimpleNamespace

from lingua_flax.host import files
from lingua_flax.runs.checkpoint import saved_steps
from tests.command_server import run_here
from tests.helpers.commands import succeed
from tests.processes import digests


def check_full_disk(done) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("the disk is full") == 1
    assert "what was saved before is intact: make space and run this again" in done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk_is_reported_in_one_sentence_and_the_run_resumes_later(trained, run, monkeypatch, tmp_path):
    """A limit on file sizes stands for a full disk, on which not even the tokenizer fits; then all but a checkpoint."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    shutil.rmtree(workdir / "checkpoints" / "240")
    train = ["train", "--workdir", workdir, "--training.eval-every", 0]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        check_full_disk(run_here(*train))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=50_000))
        check_full_disk(run_here(*train))
    assert saved_steps(workdir / "checkpoints")[-1] == 200
    succeed(run, *train)
    assert digests(workdir) == digests(trained[0])
