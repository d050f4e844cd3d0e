"""A search in segments finds what a search in one call finds, and can be left."""

import numpy as np
import pytest

from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.line_splitting import divide_sentences
from lingua_flax.translation.segmented_search import SEGMENT, SegmentedSearch, Shape, shapes
from tests.helpers.translation import decisive_translator


def check(found, expected):
    assert found.keys() <= set(range(5))
    for index, hypotheses in found.items():
        assert [own.text for own in hypotheses] == [own.text for own in expected[index]]
        np.testing.assert_allclose([own.score for own in hypotheses], [own.score for own in expected[index]], 1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_sentences_are_found_as_in_one_call_as_long_as_somebody_waits_for_them(beams):
    """With programs for five sentences, and for one of them."""
    translator, options, steps = decisive_translator(), DecodingOptions(beam_size=beams, length_penalty=0.6), []
    lines, length = ["the cat eats", "a dog sleeps", "milk", "seven geese", "he walked"], 20
    parts = translator.request(options).parts(divide_sentences(translator, lines))
    search = SegmentedSearch(translator, options, lambda count, seconds: steps.append(count))
    for rows in (5, 1):
        search.compile(Shape(rows, length))
    expected = translator.search(parts, beams, options, lambda lines: None)

    found = {index: own for each in search.search(parts, beams, lambda index: True) for index, own in each.items()}
    check(found, expected)
    assert len(found) == 5
    assert max(steps) <= SEGMENT < sum(steps)  # in several segments

    steps.clear()
    left = search.search(parts, beams, lambda index: sum(steps) < SEGMENT or index == 3)
    found = {index: own for each in left for index, own in each.items()}
    check(found, expected)
    assert 3 in found

    steps.clear()
    assert not list(search.search(parts, beams, lambda index: False))
    assert not steps


def test_first_shape_serves_for_all_lengths():
    first, *others = shapes(32, 61)
    assert first == (4, 61)
    assert sorted({shape.rows for shape in others}) == [1, 4, 8, 16, 24, 32]
    assert len(others) == 23
