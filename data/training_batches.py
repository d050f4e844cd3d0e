"""Training batches in order: worker processes plan windows ahead, and batches are gathered from the windows.

Planning and sampling are Python code that would hold the interpreter lock (GIL), which the thread that dispatches
training steps needs; hence processes. Gathering is a few NumPy calls.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from lingua_flax.data.batch import Batch
from lingua_flax.data.packing import FlatIds, Planner, Side, Window
from lingua_flax.host.workers import KILLED, WorkerPool, usable_cores
from lingua_flax.options.special_ids import BOS_ID

WINDOWS_AHEAD = 2  # at least; more if segmentations are sampled or a batch takes several windows


class TrainingBatch(NamedTuple):
    """The rows of a batch that this process keeps, and the pairs and the share of tokens, not padding, of all rows."""

    rows: Batch
    pairs: int
    real_tokens: float


class TrainingBatches(Iterator[TrainingBatch]):
    """Endless training batches [rows, row_length], determined by the planner; every epoch is shuffled differently.

    A `state` taken between two batches and passed to `restore` continues with the same batches, also in another process
    and with another selection of rows. `rows_gathered` counts the rows that this process has made so far. RunError is
    raised if a worker process has died.
    """

    def __init__(self, planner: Planner, rows: int, kept: np.ndarray | None = None, processes: int | None = None):
        """Starts at the first batch of `rows` rows, of which this process keeps those of `kept`, by default all.

        `processes` is the maximum number of worker processes, by default that of usable cores; with 0, there are none.
        """
        self._planner, self._rows = planner, rows
        self._kept = np.arange(rows) if kept is None else kept
        self._processes = usable_cores() if processes is None else processes
        self._corpus_ids: list[FlatIds] = [(each.source.values, each.target.values) for each in planner.corpora]
        self._window = self._row = 0
        self.rows_gathered = 0
        self._ahead = 2 * self._processes if planner.samples else WINDOWS_AHEAD
        self._pool: WorkerPool | None = None
        self._planned: dict[int, Future[Window]] = {}
        self._current: tuple[int, Window] | None = None

    def __next__(self) -> TrainingBatch:
        batch = Batch.zeros(len(self._kept), self._planner.row_length)
        filled = pairs = tokens = 0
        while filled < self._rows:
            window = self._current_window()
            count = min(self._rows - filled, len(window) - self._row)
            batch_rows = slice(*np.searchsorted(self._kept, (filled, filled + count)))
            window_rows = self._kept[batch_rows] - filled + self._row
            ids = [*self._corpus_ids, *([window.ids] if window.ids else [])]
            _gather(batch, np.arange(batch_rows.start, batch_rows.stop), window, window_rows, ids)
            self.rows_gathered += len(window_rows)
            pairs += int(window.row_starts[self._row + count] - window.row_starts[self._row])
            tokens += int(window.tokens[self._row : self._row + count].sum())
            filled += count
            self._row += count
            if 2 * self._row > len(window):  # not earlier, so that a short run starts no other process
                self._plan_ahead(self._window + 1)
            if self._row == len(window):
                self._window, self._row = self._window + 1, 0
        return TrainingBatch(batch, pairs, tokens / (2 * self._rows * self._planner.row_length))

    def start(self) -> None:
        """Starts sampling in the worker processes, if any, so that the first batch is available sooner."""
        if self._planner.samples:
            self._plan_ahead(self._window)

    def state(self) -> dict[str, int]:
        """Returns the position after the last batch."""
        return {"window": self._window, "row": self._row}

    def restore(self, state: dict[str, int]) -> None:
        """Continues from a position returned by `state`."""
        self._window, self._row = state["window"], state["row"]

    def close(self) -> None:
        """Shuts down the worker processes."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _current_window(self) -> Window:
        if self._current is None or self._current[0] != self._window:
            planned = self._planned.pop(self._window, None)
            window = planned.result() if planned else self._planner.window(self._window)
            self._current = self._window, window
            self._ahead = max(self._ahead, 2 * math.ceil(self._rows / len(window)))
        return self._current[1]

    def _plan_ahead(self, first: int) -> None:
        if not self._processes:
            return
        self._pool = self._pool or WorkerPool(min(self._processes, self._ahead), KILLED.format("plans batches"))
        for number in range(first, first + self._ahead):
            if number not in self._planned:
                self._planned[number] = self._pool.submit(_window, self._planner, number)


def _gather(
    batch: Batch, batch_rows: np.ndarray, window: Window, window_rows: np.ndarray, corpora: Sequence[FlatIds]
) -> None:
    """Copies rows of a window, from the flat ids of its corpora, into rows of a batch that are zero until then."""
    counts = window.row_starts[window_rows + 1] - window.row_starts[window_rows]
    pairs = np.arange(counts.sum()) + np.repeat(window.row_starts[window_rows] - (np.cumsum(counts) - counts), counts)
    row_offsets = np.repeat(batch_rows * batch.source.shape[1], counts)  # of each pair's row in the flattened batch
    for number, (source_ids, target_ids) in enumerate(corpora):
        selected = slice(None) if len(corpora) == 1 else window.corpora[pairs] == number
        placement = pairs[selected], row_offsets[selected]
        indices, tokens, positions, segments = _lay_out(source_ids, window.source, window.segments, *placement)
        batch.source.reshape(-1)[indices] = tokens
        batch.source_positions.reshape(-1)[indices] = positions
        batch.source_segments.reshape(-1)[indices] = segments
        indices, tokens, positions, segments = _lay_out(target_ids, window.target, window.segments, *placement)
        batch.target_out.reshape(-1)[indices] = tokens
        batch.target_positions.reshape(-1)[indices] = positions
        batch.target_segments.reshape(-1)[indices] = segments
        shifted = np.roll(tokens, 1)
        shifted[positions == 0] = BOS_ID
        batch.target_in.reshape(-1)[indices] = shifted


def _lay_out(
    ids: np.ndarray, side: Side, segments: np.ndarray, pairs: np.ndarray, row_offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the concatenated tokens of one side of the given pairs: the index of each token in the flattened batch,
    its id, its position in its sentence and its segment, [tokens] each."""
    lengths = side.lengths[pairs]
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    indices = positions + np.repeat(row_offsets + side.columns[pairs], lengths)
    tokens = ids[positions + np.repeat(side.starts[pairs], lengths)]
    return indices, tokens, positions, np.repeat(segments[pairs], lengths)


def rows_per_epoch(planner: Planner) -> int:
    """Returns the number of rows that the pairs of the first epoch fill."""
    numbers = range(planner.windows_per_epoch)
    if len(numbers) < 4 * usable_cores():
        return sum(len(planner.window(number)) for number in numbers)
    with WorkerPool(usable_cores(), KILLED.format("plans batches")) as pool:
        return sum(pool.map(functools.partial(_number_of_rows, planner), numbers))


# Worker processes.

_planner: Planner | None = None  # of a worker process


def _window(planner: Planner, number: int) -> Window:
    """Returns a window of the planner, which is the same for all tasks of a pool; the first copy keeps its caches."""
    global _planner
    _planner = _planner or planner
    return _planner.window(number)


def _number_of_rows(planner: Planner, number: int) -> int:
    return len(_window(planner, number))
