"""Clients that send too much, too slowly, or too many at once, and what the others notice of them."""

import contextlib
import dataclasses
import json
import logging
import re
import socket
import sys
import time
from unittest.mock import Mock

import psutil
import pytest

from lingua_flax.serving import web_server
from lingua_flax.serving.web_server import BoundedProtocol, ConnectionLimits
from tests.conftest import PROMPTLY
from tests.helpers.servers import (
    connected,
    later,
    raw,
    received,
    request,
    serving_with,
    translate,
    translation,
    until,
    until_left,
)

KEPT = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
HEAD = KEPT + b"Connection: close\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = b"x" * 50_000
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FORM = b"q=one&source=en&target=fr&api_key=" + 150 * b"k"
IS_FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
WITH_LENGTH = IS_FORM + b"Content-Length: %d\r\n\r\n%s" % (len(FORM), FORM)
IN_CHUNKS = IS_FORM + CHUNKED + b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (FORM[:5], len(FORM) - 5, FORM[5:])
UPGRADE = KEPT + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


def statuses(answers):
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", answers)]


def one():
    """Returns what answers FORM."""
    return f'{{"translatedText":"{translation("one")}"}}'.encode()


def test_what_is_too_large_is_refused_and_the_answer_can_be_read(url, search):
    for pieces, status in (
        ([HEAD, b"X-Large: ", *[LARGE] * 40], 431),
        ([HEAD, b"Content-Length: 50000000\r\n\r\n", *[LARGE] * 100], 413),
        ([HEAD, CHUNKED, *[b"c350\r\n" + LARGE + b"\r\n"] * 100], 413),
        ([HEAD, CHUNKED, b"1;", *[LARGE] * 40], 413),
        ([HEAD, CHUNKED + b"0\r\n", *[b"X-Large: " + LARGE + b"\r\n"] * 40], 413),
        ([b"no request\r\n\r\n"], 400),
    ):
        answer = raw(url, *pieces)
        assert statuses(answer) == [status]
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert not search.batches


def test_what_takes_too_long_ends(url, monkeypatch):
    monkeypatch.setattr(web_server, "HEADERS_SECONDS", 0.1)
    monkeypatch.setattr(web_server, "BODY_SECONDS", 0.1)
    for pieces in ([], [HEAD], [HEAD, b"Content-Length: 9\r\n\r\nq="]):
        assert statuses(raw(url, *pieces)) == [408]
    assert statuses(raw(url, HEAD, b"Content-Length: 0\r\n\r\n\r\n")) == [400]


def test_upgrades_are_ignored(url):
    """Java's client offers one with every request; several requests, in packets of any size."""
    sent = UPGRADE + WITH_LENGTH + 2 * (UPGRADE + IN_CHUNKS) + HEAD + IN_CHUNKS
    for size in (1, 60, 1000):
        answers = raw(url, *[sent[start : start + size] for start in range(0, len(sent), size)])
        assert statuses(answers) == [200] * 4
        assert answers.count(one()) == 4


def test_upgrades_are_ignored_of_clients_that_close_the_connection(url):
    for version, connection in ((b"1.0", b"Upgrade"), (b"1.1", b"Upgrade, close"), (b"1.0", b"upgrade, keep-alive")):
        head = b"POST /translate HTTP/%s\r\nHost: localhost\r\nConnection: %s\r\n" % (version, connection)
        answer = raw(url, head + b"Upgrade: h2c\r\n" + WITH_LENGTH)
        assert answer.count(one()) == len(statuses(answer)) == 1


def test_no_request_is_smuggled_behind_an_upgrade(url):
    for protocol in (b"h2c", b"websocket"):
        head = UPGRADE.replace(b"h2c", protocol) + IS_FORM + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED)
        assert statuses(raw(url, head, SMUGGLED, LIVEZ)) == [400, 200]  # there is no q
    for headers in (b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"):
        answers = raw(url, b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n" + SMUGGLED)
        assert statuses(answers) == [400]


def test_requests_may_wait_for_an_answer(url, search):
    search.may_go_on.clear()
    with connected(url) as connection:
        connection.sendall(KEPT + WITH_LENGTH)
        until(lambda: search.batches)
        connection.sendall(15 * (KEPT + WITH_LENGTH) + LIVEZ)  # altogether larger than one may be
        search.may_go_on.set()
        assert statuses(received(connection)) == [200] * 17


def test_requests_that_wait_for_an_answer_are_limited(engine, search, caplog):
    """In number and size; none of them is answered, nor the one that they wait for."""
    for more, status in (
        (2000 * (KEPT + WITH_LENGTH), 429),
        (4 * (KEPT + b"Content-Length: 1500\r\n\r\n" + 1500 * b"x"), 503),
        (b"no request\r\n\r\n", 400),
    ):
        with serving_with(engine, limits=ConnectionLimits(connections=50, body=2000, bodies=5000)) as url:
            search.batches, search.unwanted = [], []
            search.may_go_on.clear()
            with connected(url) as connection:
                connection.sendall(3 * (KEPT + WITH_LENGTH))
                until(lambda: search.batches)
                connection.sendall(more)
                assert statuses(received(connection)) == [status]
            until_left(url)
            search.may_go_on.set()
            assert translate(url)[0] == 200
        assert search.unwanted == ["one"]
        assert search.batches == [["one"], ["one two"]]
    assert not caplog.records


def test_connections_that_wait_make_room(engine, search, caplog):
    """They do not keep others out, not even while they linger."""
    with serving_with(engine, limits=ConnectionLimits(5, body=2000)) as url, contextlib.ExitStack() as stack:
        search.may_go_on.clear()
        busy = later(translate, url)
        until(lambda: search.batches)
        others = [stack.enter_context(connected(url)) for _ in range(100)]
        others[-1].sendall(HEAD)
        assert request(url, "/health")[0] == 200
        answers = []
        for each in others[:-3]:
            with contextlib.suppress(ConnectionResetError):  # more than MAX_ENDING
                answers.append(each.recv(1000))
        assert all(statuses(answer) == [503] and b"\r\nretry-after: 1\r\n" in answer for answer in answers[-32:])
        for each in others[-3:]:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1000)
        search.may_go_on.set()
        assert busy.result()[0] == 200
    (warning,) = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert warning == "more than 5 connections: those that wait longest are closed"


def unread(url):
    """Returns a connection with two requests for large answers, which are not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it is connected
    connection.settimeout(PROMPTLY)
    connection.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    connection.sendall(2 * (KEPT + WITH_LENGTH))
    connection.recv(100)
    return connection


def test_clients_that_do_not_read_keep_nobody_out_and_are_given_up(engine, search, monkeypatch):
    def large(*arguments):
        for found in real(*arguments):
            yield {key: [dataclasses.replace(each[0], text="x" * 8_000_000)] for key, each in found.items()}

    real, search.search = search.search, large
    with serving_with(engine, limits=ConnectionLimits(5, body=2000)) as url, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(unread(url))
        assert request(url, "/health")[0] == 200
    monkeypatch.setattr(web_server, "WRITE_SECONDS", 0.1)
    with serving_with(engine) as url, unread(url) as other:
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
    limits = ConnectionLimits(connections=50, body=2000, bodies=5000)
    with serving_with(engine, limits=limits) as url, contextlib.ExitStack() as stack:
        for size in (1200, 1300, 1400, 1500):
            connection = stack.enter_context(connected(url))
            connection.sendall(HEAD + b"Content-Length: 2000\r\n\r\n")
            time.sleep(0.05)
            connection.sendall(b"x" * size)
        assert statuses(connection.recv(1000)) == [503]
        assert translate(url)[0] == 200
