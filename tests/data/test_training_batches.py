"""Training batches: layout, order, resuming, sharding across processes, and the worker processes that plan them."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lingua_flax.data.draw_order import Draws
from lingua_flax.data.packing import Planner
from lingua_flax.data.training_batches import TrainingBatches, rows_per_epoch
from lingua_flax.host.errors import RunError
from lingua_flax.options.special_ids import BOS_ID, EOS_ID
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import HUNG_AFTER
from tests.processes import kill_workers
from tests.toy import tokenized

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")


@pytest.fixture(scope="module")
def planner():
    """A planner of 500 pairs of random lengths; the ids of a pair identify it."""
    rng = np.random.default_rng(0)
    sides = [[[*[first_id + i] * n, EOS_ID] for i, n in enumerate(rng.integers(1, 12, 500))] for first_id in (4, 1004)]
    return Planner([tokenized(*sides)], [1.0], 24, seed=3)


@pytest.fixture
def batches_of():
    """Creates training batches and shuts down their processes afterwards."""
    created = []

    def create(*arguments, **options) -> TrainingBatches:
        created.append(TrainingBatches(*arguments, **options))
        return created[-1]

    yield create
    for batches in created:
        batches.close()


def pairs_in(batch):
    """Returns (source ids, target ids) of every segment of every row, after checking the layout described in Batch."""
    pairs = []
    for row in range(len(batch.source)):
        count = batch.source_segments[row].max()
        assert (
            set(batch.source_segments[row]) - {0} == set(batch.target_segments[row]) - {0} == set(range(1, count + 1))
        )
        for segment in range(1, count + 1):
            on_source, on_target = batch.source_segments[row] == segment, batch.target_segments[row] == segment
            source, target = batch.source[row][on_source], batch.target_out[row][on_target]
            assert batch.source_positions[row][on_source].tolist() == list(range(len(source)))
            assert batch.target_positions[row][on_target].tolist() == list(range(len(target)))
            assert batch.target_in[row][on_target].tolist() == [BOS_ID, *target[:-1]]
            pairs.append((tuple(source.tolist()), tuple(target.tolist())))
    for ids, positions, segments in (
        (batch.source, batch.source_positions, batch.source_segments),
        (batch.target_out, batch.target_positions, batch.target_segments),
        (batch.target_in, batch.target_positions, batch.target_segments),
    ):
        assert not ids[segments == 0].any()
        assert not positions[segments == 0].any()
        assert ids.dtype == positions.dtype == segments.dtype == np.int32
    return pairs


def identical(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.rows, other.rows, strict=True)) and one[1:] == other[1:]


def test_every_draw_of_a_window_is_in_the_batches_once(planner, batches_of):
    """With both sides; the statistics of each batch match its contents."""
    batches, corpus = batches_of(planner, rows=16, processes=0), planner.corpora[0]
    rows, actual = len(planner.window(0)), []
    for _ in range(rows // 16):
        batch = next(batches)
        pairs = pairs_in(batch.rows)
        assert batch.pairs == len(pairs)
        assert batch.real_tokens == pytest.approx(sum(len(s) + len(t) for s, t in pairs) / (2 * 16 * 24))
        actual += pairs
    actual += pairs_in(next(batches).rows)[: 500 - len(actual)]
    expected = Counter(
        tuple(tuple(ids.tolist()) for ids in corpus[int(i)]) for i in Draws([500], [1.0], 3)[np.arange(500)].pairs
    )
    if rows % 16 == 0:
        assert Counter(actual) == expected
    else:  # the last rows share a batch with the first rows of the next window
        assert sum((Counter(actual) - expected).values()) == 0


@pytest.mark.parametrize("size", [1, 40, 500, 9000])
def test_an_epoch_is_one_pass_over_the_pairs(batches_of, size):
    """The rows of an epoch hold every pair once, however its windows divide it; the last batch begins the next one."""
    ids = [[4 + i % 100, 4 + i // 100] for i in range(size)]
    planner = Planner([tokenized(ids, ids)], [1.0], 24, seed=3)
    rows, epochs = rows_per_epoch(planner), 2 if size < 1000 else 1
    batches = batches_of(planner, rows=1, processes=0)
    for _ in range(epochs):
        seen = Counter()
        while seen.total() < size:
            seen.update(source for source, _ in pairs_in(next(batches).rows))
        assert seen == Counter(map(tuple, ids))
    assert rows == sum(len(planner.window(number)) for number in range(planner.windows_per_epoch))


def test_batches_are_determined_by_the_seed_and_differ(planner, batches_of):
    other = Planner(planner.corpora, [1.0], 24, seed=4)
    a, b, c = ([next(batches) for _ in range(12)] for batches in map(batches_of, (planner, planner, other), [16] * 3))
    assert all(map(identical, a, b))
    assert not any(map(identical, a, c))
    assert not identical(a[0], a[9])


def test_restored_position_continues_with_the_same_batches(planner, batches_of):
    """In the first window, near its end, and in later windows, which a worker process planned at first and this process
    plans after restoring."""
    batches, original = batches_of(planner, rows=64, processes=1), []
    for _ in range(104):
        original.append((json.loads(json.dumps(batches.state())), next(batches)))
    assert original[-1][0]["window"] >= 2
    for position in (0, 1, 13, 37, 98):
        restored = batches_of(planner, rows=64, processes=0)
        restored.restore(original[position][0])
        assert all(identical(batch, next(restored)) for _, batch in original[position : position + 6])


@pytest.fixture(scope="module")
def windows(planner):
    """Two consecutive windows, by number."""
    return {number: planner.window(number) for number in (4, 5)}


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_each_process_makes_only_its_own_rows(planner, windows, batches_of, monkeypatch, count):
    monkeypatch.setattr(Planner, "window", lambda _, number: windows[number])
    kept = [np.arange(process * 24 // count, (process + 1) * 24 // count) for process in range(count)]
    whole, *parts = (batches_of(planner, 24, rows, processes=0) for rows in (None, *kept))
    for batches in (whole, *parts):
        batches.restore({"window": 4, "row": len(windows[4]) - 50})
    for _ in range(5):  # into the next window
        expected, actual = next(whole), [next(part) for part in parts]
        for name in expected.rows._fields:
            np.testing.assert_array_equal(
                np.concatenate([getattr(part.rows, name) for part in actual]), getattr(expected.rows, name)
            )
        assert all(part[1:] == expected[1:] for part in actual)
    assert [part.rows_gathered for part in parts] == [5 * 24 // count] * count


def test_a_process_can_keep_rows_that_are_not_adjacent(planner, batches_of):
    """As in a mesh in which the order of the devices differs from that of their processes."""
    kept = np.array([1, 2, 7, 15])
    part, whole = batches_of(planner, 16, kept), batches_of(planner, 16)
    for _ in range(5):
        np.testing.assert_array_equal(next(part).rows.target_in, next(whole).rows.target_in[kept])


def test_a_batch_can_hold_more_rows_than_a_window(batches_of):
    """Also a corpus of a single pair."""
    planner = Planner([tokenized([[7, 8, EOS_ID]], [[9, EOS_ID]])], [1.0], 8, seed=1)
    batch = next(batches_of(planner, rows=5000, processes=1))
    pairs = Counter(pairs_in(batch.rows))
    assert set(pairs) == {((7, 8, EOS_ID), (9, EOS_ID))}
    assert pairs.total() == batch.pairs == 5000  # a row for each epoch


def test_rows_per_epoch_are_those_that_one_pass_fills(planner, monkeypatch):
    tokens = max(side.ends[-1] for side in (planner.corpora[0].source, planner.corpora[0].target))
    assert tokens / 24 < rows_per_epoch(planner) < 1.1 * tokens / 24
    monkeypatch.setattr(
        "lingua_flax.data.training_batches.usable_cores", lambda: 1
    )  # so that four windows need a worker process
    for count in (520, 28_000):
        pairs = tokenized([[5, 6, EOS_ID]] * count, [[5, 6, EOS_ID]] * count)
        assert rows_per_epoch(Planner([pairs], [1.0], 12, seed=3)) == count / 4


# Worker processes.


def children_of(process: int) -> list[int]:
    """Returns the process ids of the children of a process."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def test_a_short_run_starts_no_process(planner, batches_of):
    before = set(threading.enumerate())  # a process is started by a thread of its own
    batches = batches_of(planner, rows=16)
    for _ in range(len(planner.window(0)) // 2 // 16):
        next(batches)
    assert before.issuperset(threading.enumerate())


def test_a_killed_worker_ends_the_run_with_one_sentence(planner, batches_of):
    earlier = multiprocessing.active_children()
    batches = batches_of(planner, rows=256, processes=1)
    while batches.state()["window"] == 0:
        next(batches)
    kill_workers(earlier)
    with pytest.raises(RunError, match="a process that plans batches was killed"):
        list(itertools.islice(batches, 2000))


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(number):
    script, environment = Path(__file__).parent / "scripts" / "plan_batches.py", os.environ | PROJECT_ON_PATH
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "planning\n"
        workers = children_of(process.pid)
        assert workers
        process.send_signal(number)
        process.wait()
        deadline = time.monotonic() + HUNG_AFTER
        while any(map(_is_running, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(_is_running, workers))


def _is_running(process: int) -> bool:
    try:
        return open(f"/proc/{process}/stat").read().split()[2] != "Z"
    except FileNotFoundError:
        return False
