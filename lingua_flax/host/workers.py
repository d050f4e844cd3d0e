"""Processes that end with their parent: pools of workers, which no signal ends before it does, and other programs."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from lingua_flax.host.errors import RunError
from lingua_flax.host.interruption import SIGNALS

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool(ProcessPoolExecutor):
    """A pool whose processes are started one by one as tasks arrive.

    Both signals can reach the whole process group. A worker that dies of one while it still imports would leave its
    parent waiting, so they are blocked while it starts, and ignored from then on. Large data belongs in the arguments
    of tasks, which a thread sends: what a process is started with, its parent writes before anyone may be reading.
    """

    def __init__(self, processes: int):
        # A process with threads, such as JAX's, must not be forked.
        super().__init__(processes, multiprocessing.get_context("spawn"), _become_worker)

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        blocked = _change_mask("SIG_BLOCK", SIGNALS)
        try:
            return super().submit(task, *arguments, **options)
        finally:
            _change_mask("SIG_SETMASK", blocked)


def usable_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_program(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a program in a folder, without input; on Linux, it is killed when this process dies, even of SIGKILL."""
    at_start = _killed_with_parent if sys.platform == "linux" else None
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, preexec_fn=at_start)


def in_order(submit: Callable[[Item], Future[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yields the results of what is submitted for each item; at most `ahead` are not waited for."""
    running: deque[Future[Result]] = deque()
    for item in items:
        running.append(submit(item))
        if len(running) > ahead:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


@contextlib.contextmanager
def worker_death_as_run_error(does: str) -> Iterator[None]:
    """Raises RunError if a worker is killed; `does` is what a process does."""
    try:
        yield
    except BrokenProcessPool as error:
        raise RunError(
            f"a process that {does} was killed, perhaps because memory ran out; run the same command again to continue"
        ) from error


def _killed_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def _change_mask(how: str, signals: Iterable[int]) -> Iterable[int]:
    """Changes which signals are blocked in this thread and returns the previous ones; does nothing on Windows."""
    if not hasattr(signal, "pthread_sigmask"):
        return ()
    return signal.pthread_sigmask(getattr(signal, how), signals)


def _become_worker() -> None:
    """Makes this process ignore the signals, which it was started with blocked, and end with its parent."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _change_mask("SIG_UNBLOCK", SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed, which would otherwise wait forever for its next task."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
