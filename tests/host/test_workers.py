"""Worker processes: a signal to the whole group ends only their parent, whose death ends them; theirs ends its work."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from lingua_flax.host.errors import RunError
from lingua_flax.host.workers import WorkerPool
from tests.conftest import HUNG_AFTER
from tests.processes import finish, kill_workers, start, wait_for


def workers_of(pid: int) -> list[psutil.Process]:
    """Returns the worker processes that a process has started, from their first instruction on."""
    found = []
    for child in psutil.Process(pid).children():
        try:
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
        except psutil.Error:  # it has just ended
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_while_workers_start(toy, tmp_path, number):
    """The whole group gets it, as from a terminal, while the workers import what they need."""
    options = ("--tokenizer.sampling-alpha", "0.2", "--training.num-steps", "2000", "--training.eval-every", "0")
    process, workers = start(toy, tmp_path / "w", *options, start_new_session=True), []
    wait_for(process, lambda: workers.extend(workers_of(process.pid)) or workers)
    os.killpg(process.pid, number)
    ((status, _, errors),) = finish([process])
    assert status == 128 + number, errors
    assert "run the same command again to continue" in errors
    assert "Traceback" not in errors
    assert psutil.wait_procs(workers, HUNG_AFTER)[1] == []


def killed_within_its_result() -> bytes:
    def write_half(connection: Connection, message: bytes) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Connection, "_send", write_half)  # noqa: B010
    return bytes(1_000_000)


def length_of(task: bytes) -> int:
    return len(task)


def unreadable() -> None:
    (Path(__file__) / "nothing").read_text()


def test_worker_killed_while_it_writes_a_result():
    with WorkerPool(1, "it was killed") as pool, pytest.raises(RunError, match="it was killed"):
        pool.submit(killed_within_its_result).result(HUNG_AFTER)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_worker_killed_before_it_has_read_a_large_task_or_while_it_waits_for_one(is_waiting):
    earlier = multiprocessing.active_children()
    with WorkerPool(1, "it was killed") as pool:
        if is_waiting:
            assert list(pool.map(length_of, [b"a", b"bc", b"def"])) == [1, 2, 3]
            kill_workers(earlier)
        task = pool.submit(length_of, bytes(100_000_000))
        if not is_waiting:
            kill_workers(earlier)
        with pytest.raises(RunError, match="it was killed"):
            task.result(HUNG_AFTER)


def test_exception_of_a_task_tells_where_it_was_raised():
    with WorkerPool(1, "it was killed") as pool:
        with pytest.raises(NotADirectoryError) as raised:
            pool.submit(unreadable).result(HUNG_AFTER)
        assert "in unreadable" in raised.value.__notes__[0]
        assert pool.submit(length_of, b"a").result(HUNG_AFTER) == 1
