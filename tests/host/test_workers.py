"""Worker processes: a signal to the whole group ends only their parent, whose death ends them; theirs ends its work."""

import multiprocessing
import os
import signal
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lingua_flax.host.errors import RunError
from lingua_flax.host.workers import WorkerPool
from tests.command_server import python
from tests.conftest import HUNG_AFTER, ROOT
from tests.processes import kill_workers


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


def killed_within_its_result() -> bytes:
    def write_half(connection: Connection, message: bytes) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = write_half
    return bytes(1_000_000)


def length_of(task: bytes) -> int:
    return len(task)


def unreadable() -> None:
    (Path(__file__) / "nothing").read_text()


def test_worker_killed_while_it_writes_a_result():
    with WorkerPool(1, "it was killed") as pool, pytest.raises(RunError, match="it was killed"):
        pool.submit(killed_within_its_result).result(HUNG_AFTER)


def test_worker_killed_before_it_has_read_a_large_task():
    earlier = multiprocessing.active_children()
    with WorkerPool(1, "it was killed") as pool:
        large = pool.submit(length_of, bytes(100_000_000))
        kill_workers(earlier)
        with pytest.raises(RunError, match="it was killed"):
            large.result(HUNG_AFTER)


def test_worker_killed_while_it_waits_for_a_task():
    earlier = multiprocessing.active_children()
    with WorkerPool(1, "it was killed") as pool:
        assert list(pool.map(length_of, [b"a", b"bc", b"def"])) == [1, 2, 3]
        kill_workers(earlier)
        with pytest.raises(RunError, match="it was killed"):
            pool.submit(length_of, b"a").result(HUNG_AFTER)


def test_exception_of_a_task_tells_where_it_was_raised():
    with WorkerPool(1, "it was killed") as pool:
        with pytest.raises(NotADirectoryError) as raised:
            pool.submit(unreadable).result(HUNG_AFTER)
        assert "in unreadable" in raised.value.__notes__[0]
        assert pool.submit(length_of, b"a").result(HUNG_AFTER) == 1
