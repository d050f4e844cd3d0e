"""Clients that send too much, too slowly, or too many at once, and what the others notice of them."""

import contextlib
import json
import logging
import random
import re
import resource
import socket
import sys
import threading
import time
from unittest.mock import Mock

import psutil
import pytest

from lingua_flax.serving import web_server
from lingua_flax.serving.web_server import BoundedProtocol, ConnectionLimits
from lingua_flax.translation.hypotheses import Hypothesis
from tests.conftest import HUNG_AFTER, PROMPTLY
from tests.processes import start_command
from tests.serving.servers import raw, request, serving, translate, until

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


def connected(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PROMPTLY)


def status_of(answer):
    return int(answer.split(b" ")[1]) if answer else None


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([HEAD, *[b"X-Large: " + b"x" * 50_000 + b"\r\n"] * 40], 431),
        ([HEAD, b"X-Large: ", *[b"x" * 50_000] * 40], 431),
        ([HEAD, b"Content-Length: 50000000\r\n\r\n", *[b"x" * 50_000] * 100], 413),
        ([HEAD, b"Transfer-Encoding: chunked\r\n\r\n", *[b"c350\r\n" + b"x" * 50_000 + b"\r\n"] * 100], 413),
        ([HEAD, b"Transfer-Encoding: chunked\r\n\r\n", b"1;", *[b"x" * 50_000] * 40], 413),
        ([HEAD, b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"X-Large: " + b"x" * 50_000 + b"\r\n"] * 40], 413),
        ([b"no request\r\n\r\n"], 400),
    ],
)
def test_what_is_too_large_is_refused_and_the_answer_can_be_read(url, engine, pieces, status):
    answer = raw(url, *pieces)
    assert status_of(answer) == status
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert not engine.batches


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([], 408),
        ([HEAD], 408),
        ([HEAD, b"Content-Length: 9\r\n\r\nq="], 408),
        ([HEAD, b"Content-Length: 0\r\n\r\n\r\n"], 400),
    ],
)
def test_what_takes_too_long_ends(url, monkeypatch, pieces, status):
    monkeypatch.setattr(web_server, "HEADERS_SECONDS", 0.1)
    monkeypatch.setattr(web_server, "BODY_SECONDS", 0.1)
    assert status_of(raw(url, *pieces)) == status


FORM = b"q=one&source=en&target=fr"
UPGRADE = (
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABk\r\nContent-Type: application/x-www-form-urlencoded\r\n"
)
WITH_LENGTH = b"Content-Length: %d\r\n\r\n%s" % (len(FORM), FORM)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (FORM[:5], len(FORM) - 5, FORM[5:])
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("body", [WITH_LENGTH, CHUNKED])
@pytest.mark.parametrize("size", [1, 60, 1000])
def test_upgrades_are_ignored(url, engine, body, size):
    """Java's client offers one with every request; several requests, in packets of any size."""
    sent = 3 * (UPGRADE + body) + HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n" + body
    answers = raw(url, *[sent[start : start + size] for start in range(0, len(sent), size)])
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 OK") == 4
    assert answers.count(b'{"translatedText":"ONE"}') == 4


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_body_after_an_upgrade_is_no_request(url, protocol):
    head = UPGRADE.replace(b"h2c", protocol) + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED)
    answers = raw(url, head, SMUGGLED, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"400", b"200"]  # there is no q


@pytest.mark.parametrize("headers", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_connect_is_refused(url, headers):
    answers = raw(url, b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n" + SMUGGLED)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"400"]


KEPT = HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Type: application/x-www-form-urlencoded\r\n"


def has_left(url):
    """Returns whether a request was given up because its client has left."""
    return b'status="499"' in raw(url, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def test_requests_may_wait_for_an_answer(url, engine):
    engine.may_go_on.clear()
    with connected(url) as connection:
        connection.sendall(16 * (KEPT + WITH_LENGTH))
        until(lambda: engine.batches)
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        engine.may_go_on.set()
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert (answers.count(b"HTTP/1.1 200 OK"), answers.count(b'{"translatedText":"ONE"}')) == (17, 16)


@pytest.mark.parametrize(
    ("later", "status"),
    [
        (2000 * (KEPT + WITH_LENGTH), 429),
        (4 * (KEPT + b"Content-Length: 1500\r\n\r\n" + 1500 * b"x"), 503),
        (b"no request\r\n\r\n", 400),
    ],
)
def test_requests_that_wait_for_an_answer_are_limited(engine, caplog, later, status):
    """In number and size; none of them is answered, nor the one that they wait for."""
    with serving(lambda _: engine, limits=ConnectionLimits(connections=50, body=2000, bodies=5000)) as (server, url):
        until(lambda: server.status == "ok")
        engine.may_go_on.clear()
        with connected(url) as connection:
            connection.sendall(3 * (KEPT + WITH_LENGTH))
            until(lambda: engine.batches)
            connection.sendall(later)
            answers = b"".join(iter(lambda: connection.recv(65536), b""))
            assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"%d" % status]
        until(lambda: has_left(url))
        engine.may_go_on.set()
        assert translate(url)[0] == 200
        assert engine.unwanted == ["one"]
    assert engine.batches == [["one"], ["one two"]]
    assert not caplog.records


def test_requests_that_wait_for_an_answer_end_with_the_connection(url, engine):
    engine.may_go_on.clear()
    with connected(url) as connection:
        connection.sendall(2 * (KEPT + WITH_LENGTH))
        until(lambda: engine.batches)
    until(lambda: has_left(url))
    engine.may_go_on.set()
    until(lambda: engine.unwanted == ["one"])


def test_connections_that_wait_make_room(engine, caplog):
    with serving(lambda _: engine, limits=ConnectionLimits(connections=5, body=2000)) as (server, url):
        until(lambda: server.status == "ok")
        engine.may_go_on.clear()
        busy = threading.Thread(target=translate, args=[url])
        busy.start()
        until(lambda: engine.batches)
        others = [connected(url) for _ in range(7)]
        others[-1].sendall(HEAD)
        assert request(url, "/health")[0] == 200
        refusal = others[0].recv(1000)
        assert (status_of(refusal), b"\r\nretry-after: 1\r\n" in refusal) == (503, True)
        engine.may_go_on.set()
        busy.join()
        for each in others:
            each.close()
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "more than 5 connections: those that wait longest are closed"
    ]


@pytest.mark.parametrize(
    ("limits", "may_set", "connections", "set_to"),
    [
        ((256, resource.RLIM_INFINITY), True, 512, [(676, resource.RLIM_INFINITY)]),  # macOS
        ((256, resource.RLIM_INFINITY), False, 92, []),
        ((1024, 4096), True, 512, []),
        ((256, 300), True, 136, [(300, 300)]),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), True, 512, []),
        ((50, 50), True, 1, []),
    ],
)
def test_connections_are_those_for_which_files_may_be_open(monkeypatch, limits, may_set, connections, set_to):
    calls = []

    def setrlimit(_, limits):
        if not may_set:
            raise ValueError("current limit exceeds maximum limit")
        calls.append(limits)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert web_server.max_connections() == connections
    assert calls == set_to


def test_every_connection_beyond_the_limit_is_refused(engine):
    """Those that wait do not keep others out, not even while they linger."""
    with serving(lambda _: engine, limits=ConnectionLimits(connections=5, body=2000)) as (server, url):
        until(lambda: server.status == "ok")
        others = [connected(url) for _ in range(100)]
        assert request(url, "/health")[0] == 200
        answers = []
        for each in others[:-4]:
            with contextlib.suppress(ConnectionResetError):  # more than MAX_ENDING
                answers.append(status_of(each.recv(1000)))
        assert set(answers[-32:]) == {503}
        for each in others[-4:]:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1000)
        for each in others:
            each.close()


def unread(url, engine):
    """Returns a connection with two requests for large answers, which are not read."""
    engine.search = lambda *_: [{0: (Hypothesis("x" * 8_000_000, 0.0),)}]
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PROMPTLY)
    connection.connect((host, int(port)))
    connection.sendall(2 * (KEPT + WITH_LENGTH))
    connection.recv(100)
    return connection


def test_clients_that_do_not_read_keep_nobody_out(engine):
    with serving(lambda _: engine, limits=ConnectionLimits(connections=5, body=2000)) as (server, url):
        until(lambda: server.status == "ok")
        others = [unread(url, engine) for _ in range(5)]
        assert request(url, "/health")[0] == 200
        for each in others:
            each.close()


def test_clients_that_do_not_read_are_given_up(url, engine, monkeypatch):
    monkeypatch.setattr(web_server, "WRITE_SECONDS", 0.1)
    with unread(url, engine) as other:
        own = other.getsockname()
        until(lambda: all(each.raddr != own for each in psutil.Process().net_connections() if each.fd != -1))
        with contextlib.suppress(ConnectionResetError):
            assert sum(map(len, iter(lambda: other.recv(2**20), b""))) < 8_000_000


def test_clients_that_read_slowly_are_not_given_up():
    connection = BoundedProtocol.__new__(BoundedProtocol)
    connection.loop, connection.transport = Mock(), Mock()
    connection.transport.get_write_buffer_size.side_effect = [30, 20, 20]
    connection._expect_reader(sys.maxsize)
    for is_given_up in (False, True):
        _, check, unsent = connection.loop.call_later.call_args.args
        check(unsent)
        assert connection.transport.abort.called == is_given_up


def test_largest_of_too_many_unfinished_bodies_is_refused(engine):
    with serving(lambda _: engine, limits=ConnectionLimits(connections=50, body=2000, bodies=5000)) as (server, url):
        until(lambda: server.status == "ok")
        others = [connected(url) for _ in range(4)]
        for number, each in enumerate(others):
            each.sendall(HEAD + b"Content-Length: 2000\r\n\r\n")
            time.sleep(0.05)
            each.sendall(b"x" * (1200 + 100 * number))
        assert status_of(others[-1].recv(1000)) == 503
        assert translate(url)[0] == 200
        for each in others:
            each.close()


def test_requests_share_the_engine(url, engine):
    """A sentence of a small request comes before most of those of a large one, however long that has waited."""
    engine.max_rows = lambda length: 2
    engine.may_go_on.clear()
    first = threading.Thread(target=translate, args=[url, "first"])
    large = threading.Thread(target=translate, args=[url, "a\nb\nc\nd\ne\nf"])
    small = threading.Thread(target=translate, args=[url, "small"])
    first.start()
    until(lambda: engine.batches)
    large.start()
    until(lambda: b"waiting_cost 6.0" in raw(url, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    small.start()
    until(lambda: b"waiting_cost 7.0" in raw(url, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    engine.may_go_on.set()
    for thread in (first, large, small):
        thread.join()
    assert engine.batches == [["first"], ["a", "small"], ["b", "c"], ["d", "e"], ["f"]]


@pytest.mark.slow
def test_small_requests_are_answered_beside_large_ones(trained):
    """Two requests of 16 random texts, each as much as thousands of sentences, and SIGTERM while one is served."""
    options = ("--port", 0, "--max-waiting", 2**21, "--timeout", HUNG_AFTER)
    process = start_command("serve", "--workdir", trained[0], *options)
    log = iter(process.stderr.readline, "")
    url = next(line.split()[-1] for line in log if line.startswith("listening on "))
    assert any(line.startswith("all programs are compiled") for line in log)
    generator, answers, seconds = random.Random(0), [], []
    texts = [["".join(generator.choices("abcdefgh ", k=4999)) for _ in range(16)] for _ in range(2)]

    def ask(texts):
        body = {"q": texts, "source": "en", "target": "fr"}
        answers.append(json_answer(url, body))

    memory = psutil.Process(process.pid).memory_info().rss
    threads = [threading.Thread(target=ask, args=[own]) for own in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        started = time.monotonic()
        assert json_answer(url, {"q": "one two", "source": "en", "target": "fr"})[0] == 200
        seconds.append(time.monotonic() - started)
    assert [(status, len(answer["translatedText"])) for status, answer in answers] == [(200, 16)] * 2
    assert psutil.Process(process.pid).memory_info().rss < memory + 2**29
    assert sorted(seconds)[int(0.99 * len(seconds))] < 2
    thread = threading.Thread(target=ask, args=[texts[0]])
    thread.start()
    time.sleep(1)
    process.terminate()
    assert process.wait(timeout=5) == 143
    thread.join()
    assert answers[-1][0] == 200 or answers[-1] == (503, {"error": "the server is stopping"})  # on a fast machine, 200


def json_answer(url, body):
    content = json.dumps(body).encode()
    head = HEAD + f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HUNG_AFTER) as connection:
        connection.sendall(head + content)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return status_of(answer), json.loads(answer.partition(b"\r\n\r\n")[2])
