"""The training batches, one after the other: windows planned ahead by worker processes, batches gathered from them.

Planning and sampling are Python, which would hold the interpreter's lock against the thread that dispatches a step
every few milliseconds: hence processes. Gathering is a few calls of NumPy.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np

from data.batch import Batch, FlatIds, gather
from data.packing import WINDOW, Planner, Window
from data.subword_sampling import SampledPairs
from host.errors import RunError

WINDOWS_AHEAD = 2  # at least; more where segmentations are sampled, or a batch takes several windows


class TrainingBatch(NamedTuple):
    """The rows of a batch that a process keeps, and what is known of all of its rows.

    pairs: the number of sentence pairs; real_tokens: the share of positions, both sides, that hold a token.
    """

    rows: Batch
    pairs: int
    real_tokens: float


class TrainingBatches(Iterator[TrainingBatch]):
    """Endless training batches [rows, row_length], a function of the planner; each epoch is shuffled anew.

    `state` taken between two batches and given to `restore`, in this or another process and with any share of the
    rows, gives the same batches from there on.

    Attributes:
      rows_gathered: how many rows were made here so far.
    """

    def __init__(self, planner: Planner, rows: int, kept: np.ndarray | None = None, processes: int | None = None):
        """Args:
        rows: of a batch, over all processes of the run.
        kept: which of them this process keeps, ascending; all by default.
        processes: how many may plan; by default as many as this one may use cores, with 0 only this one does.
        """
        self._planner = planner
        self._rows = rows
        self._kept = np.arange(rows) if kept is None else kept
        self._windows = PlannedWindows(planner, rows, usable_cores() if processes is None else processes)
        self._stored: list[FlatIds] = [
            (corpus.source.values, corpus.target.values)
            for corpus in planner.corpora
            if not isinstance(corpus, SampledPairs)
        ]
        self._window = self._row = 0
        self.rows_gathered = 0

    def __next__(self) -> TrainingBatch:
        batch = Batch.zeros(len(self._kept), self._planner.row_length)
        filled = pairs = tokens = 0
        while filled < self._rows:
            window = self._windows[self._window]
            count = min(self._rows - filled, len(window) - self._row)
            here = slice(*np.searchsorted(self._kept, (filled, filled + count)))
            rows = self._kept[here] - filled + self._row
            ids = [window.ids] if window.ids else self._stored
            gather(batch, np.arange(here.start, here.stop), window, rows, ids)
            self.rows_gathered += len(rows)
            pairs += int(window.row_starts[self._row + count] - window.row_starts[self._row])
            tokens += int(window.tokens[self._row : self._row + count].sum())
            filled += count
            self._row += count
            if 2 * self._row > len(window):  # not before: a short run needs no other process at all
                self._windows.plan_ahead(self._window + 1)
            if self._row == len(window):
                self._window, self._row = self._window + 1, 0
        return TrainingBatch(batch, pairs, tokens / (2 * self._rows * self._planner.row_length))

    def start(self) -> None:
        """Begins sampling, which takes seconds, where there is something to sample; needless but for that."""
        if self._planner.samples:
            self._windows.plan_ahead(self._window)

    def state(self) -> dict[str, int]:
        """The position behind the last batch."""
        return {"window": self._window, "row": self._row}

    def restore(self, state: dict[str, int]) -> None:
        """Goes to a position given by `state`."""
        self._window, self._row = state["window"], state["row"]

    def close(self) -> None:
        """Ends the worker processes."""
        self._windows.close()


class PlannedWindows:
    """Windows by their numbers, which have to ascend; each is made here unless it was planned ahead."""

    def __init__(self, planner: Planner, rows: int, processes: int):
        """Args: rows: of a batch, so that enough are planned for the next one."""
        self._planner = planner
        self._rows = rows
        self._processes = processes
        self._ahead = 2 * processes if planner.samples else WINDOWS_AHEAD
        self._pool: ProcessPoolExecutor | None = None
        self._planned: dict[int, Future[Window]] = {}
        self._current: tuple[int, Window] | None = None

    def __getitem__(self, number: int) -> Window:
        """The window of this number.

        Raises:
          RunError: a worker process has died.
        """
        if self._current is None or self._current[0] != number:
            self._current = number, self._made(number)
            windows_a_batch = math.ceil(self._rows / len(self._current[1]))
            self._ahead = max(self._ahead, 2 * windows_a_batch)
        return self._current[1]

    def plan_ahead(self, first: int) -> None:
        """Has worker processes make windows from this number on.

        Raises:
          RunError: one of them has died.
        """
        if not self._processes:
            return
        if self._pool is None:
            self._pool = worker_pool(self._planner, min(self._processes, self._ahead))
        with _naming_what_died():
            for number in range(first, first + self._ahead):
                if number not in self._planned:
                    self._planned[number] = self._pool.submit(_window, number)

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _made(self, number: int) -> Window:
        future = self._planned.pop(number, None)
        if future is None:
            return self._planner.window(number)
        with _naming_what_died():
            return future.result()


@contextlib.contextmanager
def _naming_what_died() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise RunError(
            "a process that plans batches was killed, perhaps for want of memory; "
            "the same command goes on from the newest checkpoint"
        ) from error


def rows_per_epoch(planner: Planner) -> float:
    """Rows that the pairs of one epoch fill, counted in the windows that hold them."""
    wanted = len(planner.draws) / WINDOW
    numbers = range(math.ceil(wanted))
    if len(numbers) < 4 * usable_cores():
        counts = [len(planner.window(number)) for number in numbers]
    else:
        with worker_pool(planner, usable_cores()) as pool:
            counts = list(pool.map(_number_of_rows, numbers))
    return sum(counts) - (len(numbers) - wanted) * counts[-1]


def usable_cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Worker processes.

_planner: Planner  # of a worker process


def worker_pool(planner: Planner, processes: int) -> ProcessPoolExecutor:
    """Processes that make windows, started one by one as there is something to do."""
    context = multiprocessing.get_context("spawn")  # a process with threads, such as JAX's, must not be forked
    return ProcessPoolExecutor(processes, context, _start_worker, (planner,))


def _start_worker(planner: Planner) -> None:
    global _planner
    _planner = planner
    become_worker()


def become_worker() -> None:
    """Makes this process one that its parent alone ends: a signal may reach all processes of a group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed: it would wait for its next task for ever."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _window(number: int) -> Window:
    return _planner.window(number)


def _number_of_rows(number: int) -> int:
    return len(_planner.window(number))
