"""The training batches: their layout, their order, resuming, sharing them out, and the processes that plan them."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from data.draw_order import Draws
from data.packing import WINDOW, Planner
from data.training_batches import TrainingBatches, rows_per_epoch
from host.errors import RunError
from options.special_ids import BOS_ID, EOS_ID
from tests.conftest import ROOT
from tests.toy import tokenized


def numbered(count=500, seed=0):
    """Pairs of random lengths whose ids tell which pair they belong to."""
    rng = np.random.default_rng(seed)
    return tokenized(
        *([[*[offset + i] * n, EOS_ID] for i, n in enumerate(rng.integers(1, 12, size=count))] for offset in (4, 1004))
    )


@pytest.fixture
def planner():
    return Planner([numbered()], [1.0], 24, seed=3)


@pytest.fixture
def batches_of():
    """Makes training batches, and ends their processes afterwards."""
    made = []

    def make(*arguments, **options) -> TrainingBatches:
        made.append(TrainingBatches(*arguments, **options))
        return made[-1]

    yield make
    for batches in made:
        batches.close()


def pairs_in(batch):
    """(source ids, target ids) of every segment of every row, checked against the layout that the docstring draws."""
    found = []
    for row in range(len(batch.source)):
        count = batch.source_segments[row].max()
        assert (
            set(batch.source_segments[row]) - {0} == set(batch.target_segments[row]) - {0} == set(range(1, count + 1))
        )
        for segment in range(1, count + 1):
            here, there = batch.source_segments[row] == segment, batch.target_segments[row] == segment
            source, target = batch.source[row][here], batch.target_out[row][there]
            assert batch.source_positions[row][here].tolist() == list(range(len(source)))
            assert batch.target_positions[row][there].tolist() == list(range(len(target)))
            assert batch.target_in[row][there].tolist() == [BOS_ID, *target[:-1]]
            found.append((tuple(source.tolist()), tuple(target.tolist())))
    for ids, positions, segments in (
        (batch.source, batch.source_positions, batch.source_segments),
        (batch.target_out, batch.target_positions, batch.target_segments),
        (batch.target_in, batch.target_positions, batch.target_segments),
    ):
        assert not ids[segments == 0].any()
        assert not positions[segments == 0].any()
        assert ids.dtype == positions.dtype == segments.dtype == np.int32
    return found


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.rows, other.rows, strict=True)) and one[1:] == other[1:]


def test_a_window_is_laid_out_whole(planner, batches_of):
    """Each of its draws is there once, with both of its sides; what is told of a batch is what is in it."""
    batches, pairs = batches_of(planner, rows=16), planner.corpora[0]
    rows, found = len(planner.window(0)), []
    for _ in range(rows // 16):
        batch = next(batches)
        inside = pairs_in(batch.rows)
        assert batch.pairs == len(inside)
        assert batch.real_tokens == pytest.approx(sum(len(s) + len(t) for s, t in inside) / (2 * 16 * 24))
        found += inside
    found += pairs_in(next(batches).rows)[: WINDOW - len(found)]
    wanted = Counter(
        tuple(tuple(ids.tolist()) for ids in pairs[int(i)]) for i in Draws([500], [1.0], 3)[np.arange(WINDOW)].pairs
    )
    if rows % 16 == 0:
        assert Counter(found) == wanted
    else:  # the last rows stand beside the first of the next window
        assert sum((Counter(found) - wanted).values()) == 0


def test_batches_depend_on_the_seed_and_differ(planner, batches_of):
    other = Planner(planner.corpora, [1.0], 24, seed=4)
    a, b, c = ([next(batches) for _ in range(12)] for batches in map(batches_of, (planner, planner, other), [16] * 3))
    assert all(map(same, a, b))
    assert not any(map(same, a, c))
    assert not same(a[0], a[9])


def test_a_restored_position_gives_the_same_batches(planner, batches_of):
    """Within the first window, at its end, and windows later; planned ahead by other processes, and here."""
    batches, seen = batches_of(planner, rows=16), []
    for _ in range(420):
        seen.append((json.loads(json.dumps(batches.state())), next(batches)))
    assert seen[-1][0]["window"] >= 2
    for at in (0, 1, 13, 150, 400):
        restored = batches_of(planner, rows=16, processes=0)
        restored.restore(seen[at][0])
        assert all(same(batch, next(restored)) for _, batch in seen[at : at + 20])


@pytest.mark.parametrize("shares", [1, 2, 3, 4, 6])
def test_every_process_makes_its_rows_only(planner, batches_of, shares):
    whole = batches_of(planner, 24, processes=0)
    kept = [np.arange(share * 24 // shares, (share + 1) * 24 // shares) for share in range(shares)]
    parts = [batches_of(planner, 24, own, processes=0) for own in kept]
    for each in (whole, *parts):
        each.restore({"window": 4, "row": len(planner.window(4)) - 50})
    for _ in range(5):  # into the next window
        batch, own = next(whole), [next(part) for part in parts]
        for name in batch.rows._fields:
            np.testing.assert_array_equal(
                np.concatenate([getattr(part.rows, name) for part in own]), getattr(batch.rows, name)
            )
        assert all(part[1:] == batch[1:] for part in own)
    assert [part.rows_gathered for part in parts] == [5 * 24 // shares] * shares


def test_rows_that_are_not_side_by_side(planner, batches_of):
    """As a mesh may have them whose devices are not in the order of the processes."""
    kept = np.array([1, 2, 7, 15])
    own, whole = batches_of(planner, 16, kept), batches_of(planner, 16)
    for _ in range(5):
        np.testing.assert_array_equal(next(own).rows.target_in, next(whole).rows.target_in[kept])


def test_a_batch_larger_than_the_corpus_and_a_corpus_of_one_pair(batches_of):
    planner = Planner([tokenized([[7, 8, EOS_ID]], [[9, EOS_ID]])], [1.0], 8, seed=1)
    batch = next(batches_of(planner, rows=5000))  # more rows than a window has
    found = Counter(pairs_in(batch.rows))
    assert set(found) == {((7, 8, EOS_ID), (9, EOS_ID))}
    assert found.total() == batch.pairs == 10_000


def test_an_epoch_has_the_rows_that_one_pass_fills(planner):
    tokens = max(side.ends[-1] for side in (planner.corpora[0].source, planner.corpora[0].target))
    assert tokens / 24 < rows_per_epoch(planner) < 1.1 * tokens / 24
    three = tokenized([[5, 6, EOS_ID]] * 520, [[5, 6, EOS_ID]] * 520)
    assert rows_per_epoch(Planner([three], [1.0], 12, seed=3)) == 520 / 4
    many = tokenized([[5, 6, EOS_ID]] * 70_000, [[5, 6, EOS_ID]] * 70_000)
    assert rows_per_epoch(Planner([many], [1.0], 12, seed=3)) == 70_000 / 4


# Processes.


def workers_of(process: int) -> list[int]:
    """The children of a process, by number, that the operating system knows."""
    return [int(child) for child in open(f"/proc/{process}/task/{process}/children").read().split()]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def test_a_short_run_starts_no_process(planner, batches_of):
    before = workers_of(os.getpid())
    batches = batches_of(planner, rows=16)
    for _ in range(len(planner.window(0)) // 2 // 16):
        next(batches)
    assert workers_of(os.getpid()) == before


def test_a_worker_that_is_killed_ends_the_run_in_a_sentence(planner, batches_of):
    batches = batches_of(planner, rows=16)
    while batches.state()["window"] == 0:
        next(batches)
    for process in list(batches._windows._pool._processes.values()):
        process.kill()
    with pytest.raises(RunError, match="a process that plans batches was killed"):
        list(itertools.islice(batches, 2000))


ENDLESS = """
import time
from data.training_batches import TrainingBatches
from data.packing import Planner
from tests.test_training_batches import numbered

if __name__ == "__main__":
    batches = TrainingBatches(Planner([numbered()], [1.0], 24, seed=3), 16)
    while batches.state()["window"] < 2:
        next(batches)
    print("planning", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(number, tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "planning\n"
        workers = workers_of(process.pid)
        assert workers
        process.send_signal(number)
        process.wait()
        until = time.monotonic() + 120
        while any(map(_runs, workers)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(_runs, workers))


def _runs(process: int) -> bool:
    try:
        return open(f"/proc/{process}/stat").read().split()[2] != "Z"
    except FileNotFoundError:
        return False
