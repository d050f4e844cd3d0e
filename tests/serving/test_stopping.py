"""A server that stops answers what it has accepted, or refuses it in time."""

import http.client
import threading
from unittest.mock import Mock

from lingua_flax.serving import app
from tests.conftest import PROMPTLY
from tests.helpers.servers import JSON, connected, later, request, serving, serving_with, translate, until, waiting


def accepts(url):
    """Returns whether the server accepts connections."""
    try:
        connected(url).close()
    except ConnectionError:
        return False
    return True


def test_accepted_requests_are_answered(engine):
    with serving_with(engine) as url:
        engine.may_go_on.clear()
        answers = [later(translate, url) for _ in range(2)]
        until(lambda: engine.batches and waiting(url) + len(engine.batches[0]) == 2)
        later(lambda: (until(lambda: not accepts(url)), engine.may_go_on.set()))
    assert [answer.result()[0] for answer in answers] == [200, 200]


def test_requests_on_open_connections_are_refused(engine):
    def ask_again():
        until(lambda: not accepts(url))
        connection.request("POST", "/translate", '{"q": "a", "source": "en", "target": "fr"}', JSON)
        answer = connection.getresponse()
        return answer.status, answer.headers["Connection"]

    with serving_with(engine, drain=2.0) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/health")
        connection.getresponse().read()
        answer = later(ask_again)
    assert answer.result() == (503, "close")


def test_search_that_does_not_end_in_time_is_refused(engine, monkeypatch):
    monkeypatch.setattr(app, "FINISH_SECONDS", 0.1)
    with serving(lambda _: engine) as (server, url):
        until(lambda: server.status == "ok")
        engine.may_go_on.clear()
        answer = later(translate, url, "two")
        until(lambda: engine.batches)
        later(lambda: (answer.exception(), engine.may_go_on.set()))
    status, content, headers = answer.result()
    assert (status, content, headers["Retry-After"]) == (503, {"error": "the server is stopping"}, "1")
    assert engine.unwanted == ["two"]


def test_what_other_threads_do_not_compute_in_time_is_refused(engine, monkeypatch):
    monkeypatch.setattr(app, "FINISH_SECONDS", 0.1)
    may_end = threading.Event()
    engine.align = compute = Mock(side_effect=lambda *_: may_end.wait(PROMPTLY))
    with serving(lambda _: engine) as (server, url):
        server.inspector = compute
        until(lambda: server.status == "ok")
        asked = {"q": "one", "source": "en", "target": "fr", "alignments": True}
        answers = [later(request, url, "/inspect", {"q": "one"}), later(request, url, "/translate", asked)]
        until(lambda: compute.call_count == 2)
        later(lambda: ([answer.exception() for answer in answers], may_end.set()))
    for answer in answers:
        status, content, headers = answer.result()
        assert (status, content, headers["Retry-After"]) == (503, {"error": "the server is stopping"}, "1")
