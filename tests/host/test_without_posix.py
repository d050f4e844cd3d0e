"""The commands on a machine that lacks what only POSIX has, as Windows does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_server import PROJECT_ON_PATH
from tests.conftest import HUNG_AFTER

SCRIPT = Path(__file__).parent / "scripts" / "without_posix.py"


def run(*arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    options = {"input": text, "capture_output": True, "text": True, "timeout": HUNG_AFTER}
    return subprocess.run(command, env=os.environ | PROJECT_ON_PATH, **options)


@pytest.mark.slow
def test_trains_with_worker_processes_and_translates(toy, tmp_path):
    options = ("--training.num-steps", 20, "--training.eval-every", 20, "--tokenizer.sampling-alpha", 0.2)
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 0, done.stderr
    done = run("translate", "--workdir", tmp_path / "w", text="one two.\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr


def test_corpora_of_tfds_are_refused_without_array_record(tmp_path):
    done = run("train", "--config", "ted_pt_en", "--workdir", tmp_path / "w", "--data.cache-directory", tmp_path / "c")
    assert done.returncode == 2
    assert "needs the Python package array-record, which cannot be installed on Windows" in done.stderr
    assert not (tmp_path / "w").exists()
