"""Fixtures of the tests of the server."""

import pytest

from lingua_flax.options.schema import AlignmentOptions
from lingua_flax.serving.continuous_search import Shape
from lingua_flax.serving.engine import Engine
from tests.helpers.servers import OPTIONS, HeldSearch, network, serving_with
from tests.helpers.translation import MAX_LENGTH


@pytest.fixture
def search():
    return HeldSearch(Shape(1, MAX_LENGTH), Shape(8, MAX_LENGTH))


@pytest.fixture
def engine(search):
    return Engine({"fr": network()}, search, OPTIONS, AlignmentOptions(), workers=1)


@pytest.fixture
def url(engine, search):
    with serving_with(engine) as url:
        yield url
        search.may_go_on.set()
