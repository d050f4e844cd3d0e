"""Windows of packed rows: no pair lost, no row too long, full rows, and batches of mixed sentence lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.draw_order import Draws
from lingua_flax.data.packing import Planner, assign_rows
from lingua_flax.options.special_ids import EOS_ID
from tests.toy import tokenized


def best_fit_decreasing(pairs, row_length):
    """Returns sets of pair indices, one per row, by a search through all rows as `assign_rows` documents it.

    The row filled last is at the end of the list.
    """
    total = np.sum(pairs, axis=0)
    longer = int(total[1] > total[0])
    rows = []
    for index in sorted(range(len(pairs)), key=lambda i: -max(pairs[i])):
        fitting = [
            row for row in rows if all(sum(pairs[i][side] for i in [*row, index]) <= row_length for side in (0, 1))
        ]
        row = max(reversed(fitting), key=lambda row: sum(pairs[i][longer] for i in row)) if fitting else []
        rows = [*(other for other in rows if other is not row), [*row, index]]
    return {frozenset(row) for row in rows}


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_packing_is_best_fit_decreasing(pairs):
    lengths = np.array(pairs)
    rows = assign_rows(lengths[:, 0], lengths[:, 1], 16)
    assert {frozenset(np.flatnonzero(rows == row).tolist()) for row in range(rows.max() + 1)} == best_fit_decreasing(
        pairs, 16
    )


@pytest.fixture
def planner():
    """A planner of 300 pairs of random lengths in rows of 24; pair i consists of the id 4 + i."""
    rng = np.random.default_rng(0)
    sides = [[[4 + i] * n + [EOS_ID] for i, n in enumerate(rng.integers(0, 12, size=300))] for _ in range(2)]
    return Planner([tokenized(*sides)], [1.0], 24, seed=3)


def test_window_contains_each_of_its_draws_once(planner):
    number = 5
    window, pairs = planner.window(number), planner.corpora[0]
    drawn = Draws([300], [1.0], 3)[np.arange(number * 300, (number + 1) * 300)].pairs
    starts = window.source.starts[np.argsort(window.source.starts, kind="stable")]
    np.testing.assert_array_equal(starts, np.sort(pairs.source.starts(drawn)))
    assert window.row_starts[0] == 0
    assert window.row_starts[-1] == 300


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
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.4  # of 70 rows; 0.9 if they were not shuffled
