"""How requests wait for each other, share the engine and end early, also those of a server that stops."""

import gc
import http.client
import threading
from unittest.mock import Mock

from lingua_flax.serving import app, translations
from lingua_flax.serving.continuous_search import Shape
from lingua_flax.translation.line_splitting import divide_text
from tests.conftest import PROMPTLY
from tests.helpers.servers import (
    JSON,
    HeldSearch,
    are_waiting,
    connected,
    later,
    network,
    request,
    serving,
    serving_with,
    translate,
    translation,
    until,
    until_left,
)
from tests.helpers.translation import MAX_LENGTH


def test_requests_that_arrive_together_are_one_batch(url, search):
    search.may_go_on.clear()
    answers = [later(translate, url, "line 0")]
    until(lambda: search.batches)
    lines = [f"line {number}" for number in range(6)]
    answers += [later(translate, url, line) for line in lines[1:]]
    until(lambda: are_waiting(url, *lines[1:]))
    status, answer, headers = translate(url, ["one two three"] * 4)
    assert (status, answer) == (503, {"error": "too many requests are waiting; try again later"})
    assert headers["Retry-After"] == "1"
    search.may_go_on.set()
    assert [answer.result()[1]["translatedText"] for answer in answers] == list(map(translation, lines))
    assert [len(batch) for batch in search.batches] == [1, 5]


def test_requests_share_the_engine_and_newcomers_do_not_overtake(url, search):
    steps = threading.Semaphore(0)
    search.max_rows = lambda length: 1
    search.may_go_on = Mock(wait=lambda seconds: steps.acquire(timeout=seconds))
    answers = [later(translate, url, "a\nb\nc\nd\ne")]
    for count in (1, 2, 3):
        until(lambda count=count: len(search.batches) == count)
        if count < 3:
            steps.release()
    answers.append(later(translate, url, "x\ny"))
    until(lambda: are_waiting(url, "d", "e", "x", "y"))
    steps.release(7)
    assert [answer.result()[0] for answer in answers] == [200] * 2
    assert search.batches == [["a"], ["b"], ["c"], ["x"], ["d"], ["y"], ["e"]]


def test_batch_that_is_joined_makes_way_for_a_sentence_that_is_too_long_for_it(engine):
    """Sentences of one length join a batch one by one until the next in turn is longer; then they wait for another."""
    engine.searcher = search = HeldSearch(Shape(1, 5), Shape(1, MAX_LENGTH))
    search.may_go_on.clear()
    with serving_with(engine) as url:
        texts, answers = ["a", "b", "one two three", "c"], []
        for count, text in enumerate(texts, 1):
            answers.append(later(translate, url, text))
            until(lambda count=count: search.batches and are_waiting(url, *texts[1:count]))
        search.may_go_on.set()
        assert [answer.result()[1]["translatedText"] for answer in answers] == list(map(translation, texts))
    assert [parts and parts[0].text for parts in search.joined if parts != []][:2] == ["b", None]
    assert search.batches[:2] == [["a"], ["one two three"]]


def test_batches_run_at_the_same_time(engine, search):
    engine.workers = 2
    search.may_go_on.clear()
    with serving_with(engine) as url:
        answers = []
        for text in ("a", "b"):
            answers.append(later(translate, url, text))
            until(lambda: len(search.batches) == len(answers))
        search.may_go_on.set()
        assert [answer.result()[0] for answer in answers] == [200] * 2
    assert search.batches == [["a"], ["b"]]


def test_client_that_goes_away_costs_nothing(url, search):
    """Neither before its batch begins nor after; and it counts neither as an error nor as a success."""
    search.may_go_on.clear()
    first = later(translate, url, "first")
    until(lambda: search.batches)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PROMPTLY)
    connection.request("POST", "/translate?q=abandoned&source=en&target=fr")
    until(lambda: are_waiting(url, "abandoned"))
    connection.close()
    until(lambda: are_waiting(url))
    search.may_go_on.set()
    first.result()
    assert translate(url, "last")[0] == 200
    assert search.batches == [["first"], ["last"]]
    search.may_go_on.clear()
    connection.request("POST", "/translate?q=under+way&source=en&target=fr")
    until(lambda: len(search.batches) == 3)
    connection.close()
    until_left(url, 2)
    search.may_go_on.set()
    until(lambda: search.unwanted == ["under way"])


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


def test_sentences_of_large_texts_are_sorted_in_a_thread(url, engine, monkeypatch):
    sorting, padded_length = [], engine.padded_length
    engine.padded_length = lambda part: sorting.append(threading.current_thread().name) or padded_length(part)
    monkeypatch.setattr(translations, "LARGE", 3)
    assert translate(url, "a\nb")[0] == 200
    assert sorting == ["texts_0"] * 2


def test_what_a_large_request_keeps_is_not_looked_through_for_garbage(url):
    generations = []
    gc.callbacks.append(lambda phase, details: generations.append(details["generation"]))
    assert [[] for _ in range(2_000_000)]
    gc.callbacks.pop()
    assert max(generations) == 1


def test_deadline(engine, search):
    with serving_with(engine, timeout=0.05) as url:
        search.may_go_on.clear()
        assert translate(url)[:2] == (504, {"error": "nothing was translated for 0.05 seconds"})
        search.may_go_on.set()


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


def test_sentences_are_those_of_the_language_a_text_is_in(engine):
    """Not of the language in which another direction of the same network begins."""
    engine.translators = {"en": network()}
    ((part,),) = divide_text(engine.translator(("de", "en"), None), ["Er kam am 3. Mai."])
    assert [part.text] == ["Er kam am 3. Mai."]


def accepts(url):
    """Returns whether the server accepts connections."""
    try:
        connected(url).close()
    except ConnectionError:
        return False
    return True


def test_accepted_requests_are_answered_and_those_on_open_connections_refused(engine, search):
    def ask_again():
        until(lambda: not accepts(url))
        connection.request("POST", "/translate", '{"q": "a", "source": "en", "target": "fr"}', JSON)
        answer = connection.getresponse()
        search.may_go_on.set()
        return answer.status, answer.headers["Connection"]

    with serving_with(engine, drain=1.0) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/health")
        connection.getresponse().read()
        search.may_go_on.clear()
        accepted = [later(translate, url) for _ in range(2)]
        until(lambda: search.batches and are_waiting(url, *["one two"] * (2 - len(search.batches[0]))))
        refused = later(ask_again)
    assert refused.result() == (503, "close")
    assert [answer.result()[0] for answer in accepted] == [200, 200]


def test_search_that_does_not_end_in_time_is_refused(engine, search, monkeypatch):
    monkeypatch.setattr(app, "FINISH_SECONDS", 0.1)
    with serving(lambda _: engine) as (server, url):
        until(lambda: server.status == "ok")
        search.may_go_on.clear()
        answer = later(translate, url, "two")
        until(lambda: search.batches)
        later(lambda: (answer.exception(), search.may_go_on.set()))
    status, content, headers = answer.result()
    assert (status, content, headers["Retry-After"]) == (503, {"error": "the server is stopping"}, "1")
    assert search.unwanted == ["two"]
