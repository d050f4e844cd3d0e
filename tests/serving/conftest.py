"""Fixtures of the tests of the server."""

import pytest

from tests.helpers.servers import UpperCase, serving_with


@pytest.fixture
def engine():
    return UpperCase()


@pytest.fixture
def url(engine):
    with serving_with(engine) as url:
        yield url
        engine.may_go_on.set()
