"""The commands on a machine that lacks what only POSIX has, as Windows does."""

import os
from pathlib import Path

import pytest

from tests.command_server import PROJECT_ON_PATH
from tests.processes import finish, start_command

SCRIPT = Path(__file__).parent / "scripts" / "without_posix.py"


def run(*arguments: object) -> tuple[int, str, str]:
    return finish([start_command(SCRIPT, *arguments, env=os.environ | PROJECT_ON_PATH)])[0]


@pytest.mark.slow
def test_trains_with_worker_processes_and_translates(toy, tmp_path):
    options = ("--training.num-steps", 20, "--training.eval-every", 20, "--tokenizer.sampling-alpha", 0.2)
    status, _, errors = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert status == 0, errors
    (tmp_path / "lines").write_text("one two.\n")
    status, output, errors = run("translate", "--workdir", tmp_path / "w", "--input", tmp_path / "lines")
    assert (status, len(output.splitlines())) == (0, 1), errors


def test_corpora_of_tfds_are_refused_without_array_record(tmp_path):
    options = ("--config", "ted_pt_en", "--workdir", tmp_path / "w", "--data.cache-directory", tmp_path / "c")
    status, _, errors = run("train", *options)
    assert status == 2, errors
    assert "needs the Python package array-record, which cannot be installed on Windows" in errors
    assert not (tmp_path / "w").exists()
