"""Runs on a file system like Google Drive's, whose machine is lost again and again, as on Colab."""

import os
import random
import shutil
import time

import pytest

from lingua_flax.runs.checkpoint import saved_steps
from tests.conftest import ROOT
from tests.helpers.drive import lose_what_is_new, upload
from tests.processes import digests, metrics, start, wait_for


@pytest.mark.slow
def test_run_on_drive_is_resumed_after_machines_are_lost(toy, trained, run, tmp_path):
    """Machines are lost while they compile, train and save; the caches of each are lost with it."""
    folder, uploaded, site, draw = tmp_path / "drive", tmp_path / "uploaded", tmp_path / "site", random.Random(0)
    site.mkdir()
    shutil.copy(ROOT / "tests" / "scripts" / "like_drive.py", site / "sitecustomize.py")
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    for number, moment in enumerate(
        (
            lambda: (folder / "config.toml").exists(),  # compiling
            lambda: saved_steps(folder / "checkpoints"),
            lambda: len(metrics(folder)) > 100,  # training
            lambda: any("tmp" in path.name for path in (folder / "checkpoints").iterdir()),  # saving
            lambda: saved_steps(folder / "checkpoints")[-1:] >= [200],
        )
    ):
        process = start(toy, folder, env=environment | {"XDG_CACHE_HOME": str(tmp_path / f"machine{number}")})
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
