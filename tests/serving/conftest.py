"""Fixtures of the tests of the server."""

import pytest

from tests.serving.servers import UpperCase, serving, until


@pytest.fixture
def engine():
    return UpperCase()


@pytest.fixture
def url(engine):
    with serving(lambda _: engine) as (server, url):
        until(lambda: server.status == "ok")
        yield url
        engine.may_go_on.set()
