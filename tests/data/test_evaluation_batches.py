"""The batches of evaluation: one pair a row, sorted by length."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.batch import bucket_lengths, cut, length_batches, unpacked_batch


def test_unpacked_batch_matches_one_made_by_hand():
    batch = unpacked_batch([[5, 6, 1]], [[7, 1]], rows=2, length=4)
    assert batch.source.tolist() == [[5, 6, 1, 0], [0, 0, 0, 0]]
    assert batch.target_in.tolist() == [[2, 7, 0, 0], [0, 0, 0, 0]]
    assert batch.target_out.tolist() == [[7, 1, 0, 0], [0, 0, 0, 0]]
    assert batch.source_segments.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]


def test_truncation_keeps_the_end_token():
    assert cut([5, 6, 7, 1], 4) == [5, 6, 7, 1]
    assert cut([5, 6, 7, 1], 3) == [5, 6, 1]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 9))
def test_every_sentence_is_in_one_batch_of_one_of_four_lengths(lengths, rows):
    batches = list(length_batches(lengths, rows, 40))
    assert sorted(itertools.chain.from_iterable(group for group, _ in batches)) == list(range(len(lengths)))
    assert bucket_lengths(40) == [5, 10, 20, 40]
    for group, length in batches:
        assert len(group) <= rows
        assert max(lengths[i] for i in group) <= length
        assert length in bucket_lengths(40)
