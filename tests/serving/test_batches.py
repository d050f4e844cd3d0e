"""How requests wait for each other, share the engine and end early, also those of a server that stops."""

import dataclasses
import http.client
import threading
from unittest.mock import Mock

from lingua_flax.options.schema import AlignmentOptions, DecodingOptions
from lingua_flax.serving import app, translations
from lingua_flax.serving.engine import Engine
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.line_splitting import divide_text
from tests.conftest import PROMPTLY
from tests.helpers.networks import random_translator
from tests.helpers.servers import (
    JSON,
    connected,
    later,
    request,
    serving,
    serving_with,
    translate,
    until,
    until_left,
    waiting,
)


def test_requests_that_arrive_together_are_one_batch(url, engine):
    engine.may_go_on.clear()
    answers = [later(translate, url, "line 0")]
    until(lambda: engine.batches)
    answers += [later(translate, url, f"line {number}") for number in range(1, 6)]
    until(lambda: waiting(url) == 5)
    status, answer, headers = translate(url, ["a", "b"])
    assert (status, answer) == (503, {"error": "too many requests are waiting; try again later"})
    assert headers["Retry-After"] == "1"
    engine.may_go_on.set()
    assert [answer.result()[1]["translatedText"] for answer in answers] == [f"LINE {number}" for number in range(6)]
    assert [len(batch) for batch in engine.batches] == [1, 5]


def test_requests_share_the_engine_and_newcomers_do_not_overtake(url, engine):
    steps = threading.Semaphore(0)
    engine.max_rows = lambda length: 1
    engine.may_go_on = Mock(wait=lambda seconds: steps.acquire(timeout=seconds))
    answers = [later(translate, url, "a\nb\nc\nd\ne")]
    for count in (1, 2, 3):
        until(lambda count=count: len(engine.batches) == count)
        if count < 3:
            steps.release()
    answers.append(later(translate, url, "x\ny"))
    until(lambda: waiting(url) == 4)
    steps.release(7)
    assert [answer.result()[0] for answer in answers] == [200] * 2
    assert engine.batches == [["a"], ["b"], ["c"], ["x"], ["d"], ["y"], ["e"]]


def test_batch_that_is_joined_makes_way_for_a_sentence_that_is_too_long_for_it(url, engine):
    """Sentences of one length join a batch one by one until the next in turn is longer; then they wait for another."""
    steps, joined = threading.Semaphore(0), []

    def search(parts, is_wanted, more):
        engine.batches.append([part.text for part in parts])
        found, new = len(parts), parts
        while new:
            assert steps.acquire(timeout=PROMPTLY)
            yield {found - 1: (Hypothesis(new[-1].text, 0.0),)}
            new = more(1, 1, 0)
            joined.append(new and [part.text for part in new])
            found += 1

    engine.search, engine.max_rows = search, lambda length: 1
    engine.padded_length = lambda part: len(part.text)
    answers = [later(translate, url, "a")]
    until(lambda: engine.batches)
    for text in ("b", "long", "c"):
        answers.append(later(translate, url, text))
        until(lambda: waiting(url) == len(answers) - 1)
    steps.release(9)
    assert [answer.result()[1]["translatedText"] for answer in answers] == ["a", "b", "long", "c"]
    assert joined[:2] == [["b"], None]
    assert engine.batches[:2] == [["a"], ["long"]]


def test_batches_run_at_the_same_time(engine):
    engine.workers = 2
    engine.may_go_on.clear()
    with serving_with(engine) as url:
        answers = []
        for text in ("a", "b"):
            answers.append(later(translate, url, text))
            until(lambda: len(engine.batches) == len(answers))
        engine.may_go_on.set()
        assert [answer.result()[0] for answer in answers] == [200] * 2
    assert engine.batches == [["a"], ["b"]]


def test_client_that_goes_away_costs_nothing(url, engine):
    """Neither before its batch begins nor after; and it counts neither as an error nor as a success."""
    engine.may_go_on.clear()
    first = later(translate, url, "first")
    until(lambda: engine.batches)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PROMPTLY)
    connection.request("POST", "/translate?q=abandoned&source=en&target=fr")
    until(lambda: waiting(url) == 1)
    connection.close()
    until(lambda: waiting(url) == 0)
    engine.may_go_on.set()
    first.result()
    assert translate(url, "last")[0] == 200
    assert engine.batches == [["first"], ["last"]]
    engine.may_go_on.clear()
    connection.request("POST", "/translate?q=under+way&source=en&target=fr")
    until(lambda: len(engine.batches) == 3)
    connection.close()
    until_left(url, 2)
    engine.may_go_on.set()
    until(lambda: engine.unwanted == ["under way"])


def test_client_that_goes_away_ends_the_division_of_its_texts(engine, monkeypatch):
    """Which takes a thread, so that others are answered meanwhile."""
    divided, may_go_on = [], threading.Event()

    def divide(translator, lines):
        divided.append(lines)
        may_go_on.wait(PROMPTLY)
        return divide_text(translator, lines)

    monkeypatch.setattr(translations, "divide_text", divide)
    monkeypatch.setattr(translations, "LARGE", 3)
    with serving_with(engine) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PROMPTLY)
        content = '{"q": ["one", "two", "three"], "source": "en", "target": "fr"}'
        connection.request("POST", "/translate", content, JSON)
        until(lambda: divided)
        assert request(url, "/livez")[0] == 200
        connection.close()
        until_left(url)
        may_go_on.set()
        assert translate(url, "last")[0] == 200
    assert divided == [["one"], ["last"]]


def test_deadline(engine):
    with serving_with(engine, timeout=0.05) as url:
        engine.may_go_on.clear()
        assert translate(url)[:2] == (504, {"error": "nothing was translated for 0.05 seconds"})
        engine.may_go_on.set()


def test_server_that_is_not_ready_says_so(engine):
    ready = threading.Event()

    def load(server):
        server.status = "compiling"
        ready.wait(PROMPTLY)
        return engine

    with serving(load) as (server, url):
        until(lambda: server.status == "compiling")
        assert request(url, "/health")[:2] == (503, {"status": "compiling"})
        assert translate(url)[:2] == (503, {"error": "the server is not ready: compiling"})
        assert request(url, "/inspect", {"q": "one"})[:2] == (503, {"error": "the server is not ready: compiling"})
        ready.set()
        until(lambda: request(url, "/health")[:2] == (200, {"status": "ok"}))
        assert translate(url)[0] == 200


def test_sentences_are_those_of_the_language_a_text_is_in():
    """Not of the language in which another direction of the same network begins."""
    translators = {"en": dataclasses.replace(random_translator(), languages=("en", "de"), translate_unknown=True)}
    engine = Engine(translators, Mock(), DecodingOptions(), AlignmentOptions(), workers=1)
    ((part,),) = divide_text(engine.translator(("de", "en"), None), ["Er kam am 3. Mai."])
    assert [part.text] == ["Er kam am 3. Mai."]


def accepts(url):
    """Returns whether the server accepts connections."""
    try:
        connected(url).close()
    except ConnectionError:
        return False
    return True


def test_accepted_requests_are_answered_and_those_on_open_connections_refused(engine):
    def ask_again():
        until(lambda: not accepts(url))
        connection.request("POST", "/translate", '{"q": "a", "source": "en", "target": "fr"}', JSON)
        answer = connection.getresponse()
        engine.may_go_on.set()
        return answer.status, answer.headers["Connection"]

    with serving_with(engine, drain=1.0) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/health")
        connection.getresponse().read()
        engine.may_go_on.clear()
        accepted = [later(translate, url) for _ in range(2)]
        until(lambda: engine.batches and waiting(url) + len(engine.batches[0]) == 2)
        refused = later(ask_again)
    assert refused.result() == (503, "close")
    assert [answer.result()[0] for answer in accepted] == [200, 200]


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
