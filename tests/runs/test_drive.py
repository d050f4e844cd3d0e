"""Runs on a file system like Google Drive's, whose machine is lost again and again, as on Colab."""

import contextlib
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from lingua_flax.runs.checkpoint import saved_steps
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import ROOT
from tests.processes import digests, metrics, start, wait_for


def upload(folder: Path, uploaded: Path) -> None:
    """Makes one folder the same as another, in which a process is writing."""
    shutil.rmtree(uploaded, ignore_errors=True)
    for path in folder.rglob("*"):
        copy = uploaded / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # it has just been renamed
            shutil.copy2(path, copy)


def lose_what_is_new(folder: Path, uploaded: Path, draw: random.Random) -> None:
    """Replaces files that have changed since they were uploaded, each with a probability of a half, by what was."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        before = uploaded / path.relative_to(folder)
        if before.exists() and before.stat().st_mtime == path.stat().st_mtime:
            continue
        if draw.random() < 0.5:
            path.unlink()
            if before.exists():
                shutil.copy2(before, path)


@pytest.mark.slow
def test_run_on_drive_is_resumed_after_machines_are_lost(toy, trained, run, tmp_path):
    """Machines are lost while they compile, train and save; the caches of each are lost with it."""
    folder, uploaded, draw = tmp_path / "drive", tmp_path / "uploaded", random.Random(0)
    (tmp_path / "site").mkdir()
    shutil.copy(ROOT / "tests" / "scripts" / "like_drive.py", tmp_path / "site" / "sitecustomize.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path / "site"), PROJECT_ON_PATH["PYTHONPATH"]))}
    moments = [
        lambda: (folder / "config.toml").exists(),  # compiling
        lambda: saved_steps(folder / "checkpoints"),
        lambda: len(metrics(folder)) > 100,  # training
        lambda: saved_steps(folder / "checkpoints")[-1:] >= [120],
        lambda: any("tmp" in path.name for path in (folder / "checkpoints").iterdir()),  # saving
        lambda: saved_steps(folder / "checkpoints")[-1:] >= [200],
    ]
    for number, moment in enumerate(moments):
        env = environment | {"XDG_CACHE_HOME": str(tmp_path / f"machine{number}")}
        process = start(toy, folder, env=env)
        wait_for(process, moment)
        upload(folder, uploaded)
        time.sleep(0.5 * draw.random())
        process.kill()
        process.communicate()
        lose_what_is_new(folder, uploaded, draw)
    done = run("train", "--config", toy, "--workdir", folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert "cannot be locked" in done.stderr
    assert digests(folder) == digests(trained[0])
    assert metrics(folder)[-1] == metrics(trained[0])[-1]
