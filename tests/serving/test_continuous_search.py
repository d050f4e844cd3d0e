"""A search of batches that sentences join and leave finds what a search of whole batches finds."""

import numpy as np
import pytest

from lingua_flax.options.schema import DecodingOptions
from lingua_flax.serving.continuous_search import STEPS, ContinuousSearch, Shape, shapes
from lingua_flax.translation.batched_search import search_parts
from lingua_flax.translation.line_splitting import divide_text
from tests.helpers.translation import decisive_translator

LINES = ["the cat eats", "a dog sleeps", "milk", "seven geese", "he walked"] * 12


def check(found, expected):
    for index, hypotheses in found.items():
        assert [own.text for own in hypotheses] == [own.text for own in expected[index]]
        np.testing.assert_allclose([own.score for own in hypotheses], [own.score for own in expected[index]], 1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_sentences_join_and_are_found_as_long_as_somebody_waits_for_them(beams):
    """Of 60 sentences, five begin together; the others join, so that the ring of slots is used several times."""
    translator, options, steps = decisive_translator(), DecodingOptions(beam_size=beams, length_penalty=0.6), []
    parts = translator.request(options, beams).parts(divide_text(translator, LINES))
    search = ContinuousSearch(translator, options, 5, lambda count, seconds: steps.append(count))
    for rows in (5, 1):
        search.compile(Shape(rows, 20))
    expected = search_parts(translator, parts, options)
    waiting = []

    def more(count, longest, at_least):
        if len(waiting) < at_least:
            return None
        taken = waiting[:count]
        del waiting[: len(taken)]
        return taken

    def searched(is_wanted, joining=()):
        steps.clear()
        waiting[:] = joining
        return {index: own for each in search.search(parts[:5], is_wanted, more) for index, own in each.items()}

    found = searched(lambda index: True, parts[5:])
    check(found, expected)
    assert len(found) == 60
    assert max(steps) <= STEPS
    assert sum(steps) > 2 * translator.max_length
    check(found := searched(lambda index: sum(steps) < STEPS or index in (3, 7), parts[5:9]), expected)
    assert {3, 7} <= found.keys() < set(range(9))
    assert not searched(lambda index: False)
    assert not steps


def test_first_shape_serves_for_all_lengths():
    first, *others = shapes(32, 61)
    assert first == (4, 61)
    assert sorted({shape.rows for shape in others}) == [1, 4, 12, 32]
    assert len(others) == 15
