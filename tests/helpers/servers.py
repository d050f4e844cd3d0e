"""Servers in threads, whose network is replaced by a function, and requests to them."""

import contextlib
import dataclasses
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from lingua_flax.data.known_words import KnownWords, UnknownWords
from lingua_flax.data.tokenizer import Characters
from lingua_flax.options.schema import DataConfig, DecodingOptions
from lingua_flax.serving import web_server
from lingua_flax.serving.app import Server, make_app
from lingua_flax.serving.guard import Guard
from lingua_flax.serving.languages import languages
from lingua_flax.serving.protocol import Limits
from lingua_flax.serving.web_server import ConnectionLimits, WebServer
from lingua_flax.translation.hypotheses import Hypothesis, Translation
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link
from tests.conftest import PROMPTLY
from tests.helpers.translation import decisive_translator

JSON = {"Content-Type": "application/json"}
LIMITS = Limits(texts=4, characters=100)
Answer = tuple[int, Any, Any]  # status, JSON and headers
_threads = ThreadPoolExecutor(32)


class UnknownBeginnings(KnownWords):
    """The words of a training text that has none that begins with zz, but all others."""

    def unknown_in(self, text: str, spans: Any = None) -> UnknownWords:
        return UnknownWords([match.span() for match in re.finditer("zz[a-z]+", text)])


class UpperCase:
    """An engine that translates into capitals; alternative k ends with k apostrophes. It can be held up.

    Each line is a sentence that costs 1, whatever its length. It does not know words that begin with zz.
    """

    workers = 1
    max_cost = 1
    options = DecodingOptions(beam_size=3)

    def __init__(self) -> None:
        self.searcher = self
        self.batches: list[list[str]] = []
        self.unwanted: list[str] = []
        self.directions: list[tuple[str, str]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def translator(self, languages: tuple[str, str], glossary: Any) -> Translator:
        self.directions.append(languages)
        own = dataclasses.replace(decisive_translator(max_length=500), one_sentence_per_line=True)
        tokenizer = dataclasses.replace(own.tokenizer, words=UnknownBeginnings(b""))
        own = dataclasses.replace(own, languages=languages, tokenizer=tokenizer, translate_unknown=True)
        return own.with_glossary(glossary) if glossary else own

    def cost(self, part: Part) -> int:
        return 1

    def padded_length(self, part: Part) -> int:
        return 1

    def max_rows(self, length: int) -> int:
        return 8

    def search(self, parts: Sequence[Part], is_wanted: Callable[[int], bool], more: Any) -> Any:
        self.batches.append([part.text for part in parts])
        self.may_go_on.wait(PROMPTLY)
        self.unwanted += [part.text for number, part in enumerate(parts) if not is_wanted(number)]
        for number, part in enumerate(parts):
            ranks = range(part.num_hypotheses)
            yield {number: tuple(Hypothesis(part.text.upper() + "'" * rank, 0.0) for rank in ranks)}

    def align(self, _: Translator, translations: Sequence[Translation], wanted: Sequence[bool]) -> list[list[Link]]:
        words = [[Characters(*word.span()) for word in re.finditer(r"\S+", own.source)] for own in translations]
        return [[Link(word, word) for word in own] for own in words]


@contextlib.contextmanager
def serving(
    load: Callable[[Server], Any],
    drain: float = 0.0,
    limits: ConnectionLimits | None = None,
    root_path: str = "",
    workdir: Path | None = None,
    **options: Any,
) -> Iterator[tuple[Server, str]]:
    """Serves in a thread; yields the server and its URL."""
    settings = {"max_waiting": 6, "timeout": PROMPTLY} | options
    server = Server(languages(DataConfig(source_language="en", target_language="fr")), LIMITS, **settings)
    guarded = Guard(make_app(server, load, workdir), server.metrics, hosts=["translator.example"], root_path=root_path)
    listener = socket.create_server(("127.0.0.1", 0))
    process = WebServer(guarded, server.stop, limits or ConnectionLimits(100, 2000))
    thread = threading.Thread(target=process.run, kwargs={"sockets": [listener]})
    with mock.patch.object(web_server, "DRAIN_SECONDS", drain):
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.stop()
            thread.join()


@contextlib.contextmanager
def serving_with(engine: UpperCase, **options: Any) -> Iterator[str]:
    """Serves with an engine; yields the URL once the server is ready."""
    with serving(lambda _: engine, **options) as (server, url):
        until(lambda: server.status == "ok")
        yield url


def later(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Calls a function in another thread."""
    return _threads.submit(function, *arguments)


def until(condition: Callable[[], Any]) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + PROMPTLY
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def request(
    url: str, path: str, content: Any = None, method: str | None = None, **headers: str
) -> tuple[int, Any, Any]:
    """Returns the status, the JSON and the headers of an answer."""
    data = json.dumps(content).encode() if isinstance(content, dict | list) else content
    kind = JSON if isinstance(content, dict | list) else {}
    message = urllib.request.Request(url + path, data, kind | headers, method=method)
    try:
        with urllib.request.urlopen(message, timeout=PROMPTLY) as answer:
            return answer.status, json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers


def translate(url: str, q: Any = "one two", **options: Any) -> Answer:
    """Asks for a translation; returns as `request`."""
    return request(url, "/translate", {"q": q, "source": "en", "target": "fr"} | options)


def metric(url: str, name: str) -> float:
    """Returns the value of a metric, given with its labels, or 0."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PROMPTLY) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"lingua_flax_{name} "))


def waiting(url: str) -> float:
    """Returns how many lines wait for a batch."""
    return metric(url, "waiting_cost")


def until_left(url: str, count: int = 1) -> None:
    """Waits until so many requests were given up because their clients have left, and asks once more: then they end."""
    name = 'requests_total{path="/translate",status="499"}'
    until(lambda: metric(url, name) == count and metric(url, name))


def connected(url: str) -> socket.socket:
    """Returns a connection to a server."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PROMPTLY)


def raw(url: str, *pieces: bytes) -> bytes:
    """Sends pieces of bytes and returns what is received until the server closes the connection."""
    with connected(url) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """Returns what is received until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))
