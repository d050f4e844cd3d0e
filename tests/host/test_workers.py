"""Worker processes: a signal to the whole process group ends only their parent, and its death ends them."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.command_server import python
from tests.conftest import HUNG_AFTER, ROOT


def workers_of(process: subprocess.Popen) -> list[int]:
    """Returns the worker processes that a process has started, from their first instruction on."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_workers_start(toy, tmp_path, number):
    """The whole group gets it, as from a terminal, while the workers import what they need."""
    options = ("--tokenizer.sampling-alpha", "0.2", "--training.num-steps", "2000", "--training.eval-every", "0")
    command = [*python("train"), "--config", str(toy), "--workdir", str(tmp_path / "w"), *options]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + HUNG_AFTER
    while not (workers := workers_of(process)) and time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    os.killpg(process.pid, number)
    try:
        _, errors = process.communicate(timeout=HUNG_AFTER)
    finally:
        process.kill()
    assert process.returncode == 128 + number, errors
    assert "run the same command again to continue" in errors
    assert "Traceback" not in errors
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.01)
