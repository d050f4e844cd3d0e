"""Pairs that are left out because of the others: repetitions, unusual lengths, and shifted lines."""

import random

import numpy as np

from lingua_flax.data.cleaning.corpus_filters import (
    UNRELATED,
    Shift,
    correlation,
    deviations,
    digests,
    find_shifts,
    occurrences,
)
from lingua_flax.data.cleaning.report import alignment_warnings
from lingua_flax.data.corpora.corpus import Pair
from tests.helpers.pairs import lengths_of


def test_occurrences_match_a_slow_reference():
    draw = random.Random(1)
    values = [draw.randrange(300) for _ in range(1000)]
    assert occurrences(np.array(values, np.uint64)).tolist() == [values[:i].count(v) for i, v in enumerate(values)]


def test_digests_ignore_what_they_should():
    first, second = digests(Pair("A cat, 1!", "Eine Katze")), digests(Pair("a cat 2", "eine katze."))
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert digests(Pair("1", "a"))[1] != digests(Pair("2", "a"))[1]  # without letters, digits count
    assert digests(Pair("ab", "c"))[:2] != digests(Pair("a", "bc"))[:2]


def test_deviations_find_only_unusual_ratios():
    draw = np.random.default_rng(1)
    source = draw.integers(10, 200, 5000)
    target = np.maximum(1, source * 1.2 + draw.normal(0, 1, 5000) * np.sqrt(source) * 1.5).astype(int)
    target[:100] *= 3
    found = np.flatnonzero(deviations(np.stack([source, target], axis=1)) > 6)
    assert set(found) <= set(range(100))
    assert len(found) > 85


def test_shifts_are_found_where_they_begin_and_end():
    for seed, shift in enumerate((-3, -1, 1, 2)):
        found = find_shifts(lengths_of(lambda i, by=shift: by if 2000 <= i < 4000 else 0, seed=seed))
        assert [part.by for part in found] == [shift]
        assert abs(found[0].first - 2001) <= 20
        assert abs(found[0].last - 4000) <= 20
        assert find_shifts(lengths_of(lambda i: 0, seed=seed)) == []


def test_a_shift_is_found_among_pairs_that_do_not_match():
    for dirt in (0.1, 0.5):
        lengths = lengths_of(lambda i: 1 if i >= 3000 else 0)
        draw = np.random.default_rng(1)
        lines = draw.random(len(lengths)) < dirt
        lengths[lines, 1] = draw.permutation(lengths[lines, 1])
        (part,) = find_shifts(lengths)
        assert part.by == 1
        assert abs(part.first - 3001) <= 50


def test_few_pairs_are_not_shifted_by_chance():
    for seed in range(30):
        assert find_shifts(np.random.default_rng(seed).integers(1, 50, (8, 2))) == []
    assert find_shifts(lengths_of(lambda i: 1))[0][:2] == (1, 6000)


def test_unrelated_parts_and_corpora():
    lengths = lengths_of(lambda i: 0)
    lengths[3000:, 1] = np.random.default_rng(2).permutation(lengths[3000:, 1])
    (part,) = find_shifts(lengths)
    assert part.by == UNRELATED
    assert abs(part.first - 3001) <= 20
    lengths[:, 1] = np.random.default_rng(2).permutation(lengths[:, 1])
    assert find_shifts(lengths) == []
    (warning,) = alignment_warnings(len(lengths), correlation(lengths), [])
    assert "hardly correlated" in warning
    assert correlation(np.ones((5, 2))) is None
    assert list(alignment_warnings(6000, 0.9, [])) == []
    (warning,) = alignment_warnings(6000, 0.1, [Shift(4001, 6000, -1)])
    assert warning.startswith("lines 4,001 to 6,000 are misaligned: the source side is 1 line behind; near line 4,001")
