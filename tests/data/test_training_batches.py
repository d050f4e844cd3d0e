"""Batches of training: packing, layout, order, resuming, shares of processes, workers; and those of evaluation."""

import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from contextlib import closing

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.batch import bucket_lengths, cut, length_batches, unpacked_batch
from lingua_flax.data.draw_order import Draws
from lingua_flax.data.packing import Planner, assign_rows
from lingua_flax.data.training_batches import TrainingBatches, rows_per_epoch
from lingua_flax.options.special_ids import EOS_ID
from tests.conftest import HUNG_AFTER
from tests.helpers.batches import identical, pairs_in
from tests.processes import start_command
from tests.toy import tokenized


@pytest.fixture(scope="module")
def planner():
    """A planner of 500 pairs of random lengths; the ids of a pair identify it."""
    rng = np.random.default_rng(0)
    sides = [[[*[first_id + i] * n, EOS_ID] for i, n in enumerate(rng.integers(1, 12, 500))] for first_id in (4, 1004)]
    return Planner([tokenized(*sides)], [1.0], 24, seed=3)


@pytest.fixture
def batches_of():
    """Creates training batches and shuts down their processes afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(closing(TrainingBatches(*arguments, **options)))


# Windows of packed rows.


def best_fit_decreasing(pairs, row_length):
    """Returns sets of pair indices, one per row, by a search through all rows as `assign_rows` documents it.

    The row filled last is at the end of the list.
    """
    total = np.sum(pairs, axis=0)
    longer = int(total[1] > total[0])
    rows = []
    for index in sorted(range(len(pairs)), key=lambda i: -max(pairs[i])):
        fitting = [row for row in rows if np.all(np.sum([pairs[i] for i in [*row, index]], axis=0) <= row_length)]
        row = max(reversed(fitting), key=lambda row: sum(pairs[i][longer] for i in row)) if fitting else []
        rows = [*(other for other in rows if other is not row), [*row, index]]
    return {frozenset(row) for row in rows}


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_packing_is_best_fit_decreasing(pairs):
    lengths = np.array(pairs)
    rows = assign_rows(lengths[:, 0], lengths[:, 1], 16)
    found = {frozenset(np.flatnonzero(rows == row).tolist()) for row in range(rows.max() + 1)}
    assert found == best_fit_decreasing(pairs, 16)


def test_sentences_of_a_row_are_adjacent(planner):
    window = planner.window(0)
    for row in range(len(window)):
        pairs = slice(*window.row_starts[row : row + 2])
        assert window.segments[pairs].tolist() == list(range(1, pairs.stop - pairs.start + 1))
        for side in (window.source, window.target):
            ends = np.cumsum(side.lengths[pairs])
            assert side.columns[pairs].tolist() == [0, *ends[:-1].tolist()]
            assert 0 < ends[-1] <= 24
        assert window.tokens[row] == window.source.lengths[pairs].sum() + window.target.lengths[pairs].sum()


def test_rows_are_shuffled_within_a_window(planner):
    """Their longest sentences neither increase nor decrease, although the rows are filled in that order."""
    window = planner.window(0)
    longest = np.maximum.reduceat(np.maximum(window.source.lengths, window.target.lengths), window.row_starts[:-1])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.4  # 0.9 if they were not shuffled


# Batches of training.


def test_every_draw_of_a_window_is_in_the_batches_once(planner, batches_of):
    """With both sides; the statistics of each batch match its contents."""
    batches, corpus = batches_of(planner, rows=16, processes=0), planner.corpora[0]
    rows, actual = len(planner.window(0)), []
    assert rows % 16  # the last rows share a batch with the first rows of the next window
    for _ in range(rows // 16 + 1):
        batch = next(batches)
        pairs = pairs_in(batch.rows)
        assert batch.pairs == len(pairs)
        assert batch.real_tokens == pytest.approx(sum(len(s) + len(t) for s, t in pairs) / (2 * 16 * 24))
        actual += pairs
    drawn = Draws([500], [1.0], 3)[np.arange(500)].pairs
    assert Counter(actual[:500]) == Counter(tuple(tuple(ids.tolist()) for ids in corpus[int(i)]) for i in drawn)


@pytest.mark.parametrize("size", [1, 500, 9000])
def test_an_epoch_is_one_pass_over_the_pairs(batches_of, size):
    """The rows of an epoch hold every pair once, however its windows divide it; the last batch begins the next one."""
    ids = [[4 + i % 100, 4 + i // 100] for i in range(size)]
    planner = Planner([tokenized(ids, ids)], [1.0], 24, seed=3)
    batches = batches_of(planner, rows=1, processes=0)
    for _ in range(2 if size < 1000 else 1):
        seen = Counter()
        while seen.total() < size:
            seen.update(source for source, _ in pairs_in(next(batches).rows))
        assert seen == Counter(map(tuple, ids))
    assert rows_per_epoch(planner) == sum(len(planner.window(number)) for number in range(planner.windows_per_epoch))


def test_restored_position_continues_with_the_same_batches(planner, batches_of):
    """In the first window, near its end, and in later windows, which a worker process planned at first and this process
    plans after restoring. They are determined by the seed and differ."""
    batches, original = batches_of(planner, rows=64, processes=1), []
    for _ in range(104):
        original.append((json.loads(json.dumps(batches.state())), next(batches)))
    assert original[-1][0]["window"] >= 2
    other = batches_of(Planner(planner.corpora, [1.0], 24, seed=4), rows=64, processes=0)
    assert not any(identical(batch, next(other)) or identical(batch, original[50][1]) for _, batch in original[:6])
    for position in (0, 1, 13, 37, 98):
        restored = batches_of(planner, rows=64, processes=0)
        restored.restore(original[position][0])
        assert all(identical(batch, next(restored)) for _, batch in original[position : position + 6])


def test_each_process_makes_only_its_own_rows(planner, batches_of):
    """Which need not be adjacent: the order of the devices in a mesh may differ from that of their processes."""
    shares = [[np.arange(process * 24 // n, (process + 1) * 24 // n) for process in range(n)] for n in (2, 3, 6)]
    interleaved = [np.arange(process, 24, 2) for process in range(2)]
    for kept in (*shares, interleaved):
        whole, *parts = (batches_of(planner, 24, rows, processes=0) for rows in (None, *kept))
        for batches in (whole, *parts):
            batches.restore({"window": 4, "row": len(planner.window(4)) - 50})
        for _ in range(5):  # into the next window
            expected, actual = next(whole), [next(part) for part in parts]
            for rows, part in zip(kept, actual, strict=True):
                assert all(map(np.array_equal, part.rows, [array[rows] for array in expected.rows]))
                assert part[1:] == expected[1:]
        assert [part.rows_gathered for part in parts] == [5 * len(rows) for rows in kept]


def test_a_batch_can_hold_more_rows_than_a_window(batches_of):
    """Also a corpus of a single pair."""
    planner = Planner([tokenized([[7, 8, EOS_ID]], [[9, EOS_ID]])], [1.0], 8, seed=1)
    batch = next(batches_of(planner, rows=500, processes=0))
    assert pairs_in(batch.rows) == [((7, 8, EOS_ID), (9, EOS_ID))] * 500  # a row for each epoch
    assert batch.pairs == 500


def test_workers_count_the_rows_of_an_epoch(monkeypatch):
    monkeypatch.setattr("lingua_flax.data.training_batches.usable_cores", lambda: 1)  # four windows need a worker
    for count in (520, 28_000):
        pairs = tokenized([[5, 6, EOS_ID]] * count, [[5, 6, EOS_ID]] * count)
        assert rows_per_epoch(Planner([pairs], [1.0], 12, seed=3)) == count / 4


# Worker processes.


def test_a_short_run_starts_no_process(planner, batches_of):
    before = set(threading.enumerate())  # a process is started by a thread of its own
    batches = batches_of(planner, rows=16)
    for _ in range(len(planner.window(0)) // 2 // 16):
        next(batches)
    assert before.issuperset(threading.enumerate())


PARENT = """
import os, time
from lingua_flax.host.workers import WorkerPool

if __name__ == "__main__":
    pool = WorkerPool(1, "killed")
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 900).result()
"""


def test_workers_end_with_their_parent():
    parent = start_command("-c", PARENT)
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + HUNG_AFTER
    with contextlib.suppress(psutil.NoSuchProcess):
        while worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


# Batches of evaluation: one pair a row, sorted by length.


def test_unpacked_batch_matches_one_made_by_hand():
    batch = unpacked_batch([[5, 6, 1]], [[7, 1]], rows=2, length=4)
    assert batch.source.tolist() == [[5, 6, 1, 0], [0, 0, 0, 0]]
    assert batch.target_in.tolist() == [[2, 7, 0, 0], [0, 0, 0, 0]]
    assert batch.target_out.tolist() == [[7, 1, 0, 0], [0, 0, 0, 0]]
    assert batch.source_segments.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]
    assert [cut([5, 6, 7, 1], length) for length in (4, 3)] == [[5, 6, 7, 1], [5, 6, 1]]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 9))
def test_every_sentence_is_in_one_batch_of_one_of_four_lengths(lengths, rows):
    batches = list(length_batches(lengths, rows, 40))
    assert sorted(itertools.chain.from_iterable(group for group, _ in batches)) == list(range(len(lengths)))
    assert bucket_lengths(40) == [5, 10, 20, 40]
    for group, length in batches:
        assert len(group) <= rows
        assert max(lengths[i] for i in group) <= length
        assert length in bucket_lengths(40)
