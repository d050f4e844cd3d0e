"""Processes that end with their parent: pools of workers, which no signal ends before it does, and other programs."""

import contextlib
import ctypes
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from lingua_flax.host.errors import RunError
from lingua_flax.host.interruption import SIGNALS

KILLED = "a process that {} was killed, perhaps because memory ran out; run the same command again to continue"
_starting = threading.Lock()  # while a worker is started
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool(ThreadPoolExecutor):
    """A pool of threads, each of which passes its tasks to a process of its own, started with the first one.

    A process shares neither a pipe nor a lock with others, so one that is killed while it reads, writes or waits leaves
    nobody waiting, as it would in ProcessPoolExecutor. Large data belongs in the arguments of tasks: what a process is
    started with, its parent writes before anyone may be reading.
    """

    def __init__(self, processes: int, if_killed: str):
        """`if_killed` is the message of the RunError that a task of a killed process raises."""
        super().__init__(processes, initializer=_block_signals)
        self._if_killed = if_killed
        self._own = threading.local()

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        return super().submit(self._call, functools.partial(task, *arguments, **options))

    def _call(self, task: Callable[[], Any]) -> Any:
        if not hasattr(self._own, "worker"):
            self._own.worker = _start_worker()
        try:
            self._own.worker.send(task)
            succeeded, result = self._own.worker.recv()
        except (EOFError, OSError) as error:
            raise RunError(self._if_killed) from error
        if not succeeded:
            raise result
        return result


def usable_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_program(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a program in a folder, without input; all that it prints goes to standard error.

    On Linux, it is killed when this process dies, even of SIGKILL.
    """
    at_start = _killed_with_parent if sys.platform == "linux" else None
    stdin, stderr = subprocess.DEVNULL, 2
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=stdin, stdout=stderr, preexec_fn=at_start)


def in_order(submit: Callable[[Item], Future[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yields the results of what is submitted for each item; at most `ahead` are not waited for."""
    running: deque[Future[Result]] = deque()
    for item in items:
        running.append(submit(item))
        if len(running) > ahead:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _killed_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def _block_signals() -> None:
    """Blocks both signals in this thread, and thereby in the processes that it starts, until these ignore them.

    They can reach the whole process group, and a worker that died of one while it imports would end its parent's work.
    """
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        resource_tracker.ensure_running()  # or the start of a process starts it, which unblocks the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _start_worker() -> Connection:
    context = multiprocessing.get_context("spawn")  # a process with threads, such as JAX's, must not be forked
    connection, of_worker = context.Pipe()
    with of_worker, _starting:
        # A worker imports its parent's main module, which may be a script of the user's that trains when it is run.
        main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            context.Process(target=_work, args=(of_worker,)).start()
        finally:
            sys.modules["__main__"] = main
    return connection


def _work(connection: Connection) -> None:
    """Does the tasks of a thread of the parent until that has ended, and with it its end of the connection."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(_outcome(connection))


def _outcome(connection: Connection) -> tuple[bool, Any]:
    """Returns whether the next task succeeded, and its result or exception; raises EOFError if there is no task."""
    task = None
    try:
        task = connection.recv()
        return True, task()
    except Exception as error:
        if not task and isinstance(error, EOFError):
            raise
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return False, error


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed, without doing its task to the end."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
