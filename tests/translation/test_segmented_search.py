"""A search in segments finds what a search in one call finds, and can be left."""

import numpy as np
import pytest

from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation import requests
from lingua_flax.translation.segmented_search import SEGMENT, SegmentedSearch, Shape, shapes
from tests.translation.test_translator import PAIRS, translator  # noqa: F401


@pytest.fixture(params=[1, 3])
def problem(translator, request):  # noqa: F811
    """Returns sentences, a search with programs for five or one of them, its steps, expected results, and beams."""
    options, steps = DecodingOptions(beam_size=request.param, length_penalty=0.6), []
    pieces = translator.divided([source for source, _ in PAIRS], one_sentence_per_line=True, translate_unknown=True)
    parts = requests.parts_of(pieces, None, translator.tokenizer, options, translator.max_length)
    length = shapes(5, translator.max_length)[1].length
    parts = [part for part in parts if len(part.source) <= length][:5]
    search = SegmentedSearch(translator, options, lambda count, seconds: steps.append(count))
    for rows in (5, 1):
        search.compile(Shape(rows, length))
    expected = translator.search(parts, request.param, options, lambda lines: None)
    return parts, search, steps, dict(enumerate(expected)), request.param


def check(found, expected):
    assert found.keys() == expected.keys()
    for index, hypotheses in found.items():
        assert [own.text for own in hypotheses] == [own.text for own in expected[index]]
        np.testing.assert_allclose([own.score for own in hypotheses], [own.score for own in expected[index]], 1e-5)


def test_sentences_are_found_as_in_one_call(problem):
    parts, search, steps, expected, count = problem
    assert len(parts) == 5
    found = list(search.search(parts, count, lambda index: True))
    check({index: own for each in found for index, own in each.items()}, expected)
    assert max(steps) <= SEGMENT < sum(steps)  # in several segments


def test_search_that_nobody_waits_for_ends(problem):
    parts, search, steps, expected, count = problem
    wanted = {0, 1, 2, 3, 4}

    def leave(index):
        return index in wanted if sum(steps) < SEGMENT else index == 3

    found = list(search.search(parts, count, leave))
    check(
        {index: own for each in found for index, own in each.items()} | {3: expected[3]},
        {3: expected[3]} | {index: expected[index] for each in found for index in each},
    )
    steps.clear()
    assert not list(search.search(parts, count, lambda index: False))
    assert not steps


def test_first_shape_serves_for_all_lengths():
    first, *others = shapes(32, 61)
    assert first == (4, 61)
    assert sorted({shape.rows for shape in others}) == [1, 4, 8, 16, 24, 32]
    assert len(others) == 23
