"""Servers in threads, which translate with a small network of random parameters, and requests to them."""

import contextlib
import dataclasses
import functools
import gc
import json
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

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.known_words import known_words
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.options.schema import DataConfig, DecodingOptions, TokenizerConfig
from lingua_flax.serving import web_server
from lingua_flax.serving.app import Server, make_app
from lingua_flax.serving.continuous_search import ContinuousSearch, Shape
from lingua_flax.serving.engine import Engine
from lingua_flax.serving.guard import Guard
from lingua_flax.serving.languages import languages
from lingua_flax.serving.protocol import Limits
from lingua_flax.serving.web_server import ConnectionLimits, WebServer
from lingua_flax.translation.html_text import translate_html
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator
from tests.conftest import PROMPTLY
from tests.helpers.translation import decisive_translator

JSON = {"Content-Type": "application/json"}
LIMITS = Limits(texts=4, characters=100)
TEXTS = ["She ate an apple. We saw the bank.", "The cat was tired.", "one two three: a table", "à l'été"]
TEXTS += ["line 0 1 2 3 4 5", "first last abandoned under way", "b c d e x y amp"]
OPTIONS = DecodingOptions(beam_size=3, max_decoding_length=12, batch_size=1)
Answer = tuple[int, Any, Any]  # status, JSON and headers
_threads = ThreadPoolExecutor(32)


@functools.cache
def network() -> Translator:
    """Returns a network with random parameters, which knows the words of TEXTS."""
    models = train_tokenizer([Pair(text, text) for text in TEXTS] * 20, TokenizerConfig(vocab_size=60), [])
    tokenizer = dataclasses.replace(parse_tokenizers(models), words=known_words(TEXTS))
    how: dict[str, Any] = {"languages": ("en", "fr"), "translate_unknown": True, "pads_to_longest": True}
    return dataclasses.replace(decisive_translator(), tokenizer=tokenizer, **how)


@functools.cache
def translation(text: str, rank: int = 0) -> str:
    """Returns what `Translator.translate` makes of the lines of a text, or an alternative; or the best of HTML."""
    if text.startswith("<p"):
        return translate_html(network(), text, OPTIONS)
    lines = network().translate(text.split("\n"), OPTIONS, num_hypotheses=OPTIONS.beam_size, warn=False)
    return "\n".join(own.hypotheses[min(rank, len(own.hypotheses) - 1)].text for own in lines)


@functools.cache
def _search(*shapes: Shape) -> ContinuousSearch:
    search = ContinuousSearch(network(), OPTIONS, max(shapes).rows, lambda *_: None)
    for shape in shapes:
        search.compile(shape)
    return search


class HeldSearch:
    """A search with the programs for some shapes, which can be held up before each batch.

    It notes what batches begin with and what joins them, and what nobody wants any more when one may go on.
    """

    def __init__(self, *shapes: Shape) -> None:
        self.real = _search(*shapes)
        self.max_rows = self.real.max_rows
        self.batches: list[list[str]] = []
        self.joined: list[Any] = []
        self.unwanted: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def search(self, parts: Sequence[Part], is_wanted: Callable[[int], bool], more: Callable[..., Any]) -> Any:
        def noted(*limits: int) -> Any:
            self.joined.append(more(*limits))
            return self.joined[-1]

        self.batches.append([part.text for part in parts])
        self.may_go_on.wait(PROMPTLY)
        self.unwanted += [part.text for number, part in enumerate(parts) if not is_wanted(number)]
        yield from self.real.search(parts, is_wanted, noted)


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
    settings = {"max_waiting": 150, "timeout": PROMPTLY} | options
    server = Server(languages(DataConfig(source_language="en", target_language="fr")), LIMITS, **settings)
    guarded = Guard(make_app(server, load, workdir), server.metrics, hosts=["translator.example"], root_path=root_path)
    listener = socket.create_server(("127.0.0.1", 0))
    process = WebServer(guarded, server.stop, limits or ConnectionLimits(100, 2000))
    thread = threading.Thread(target=process.run, kwargs={"sockets": [listener]})
    thresholds = gc.get_threshold()
    with mock.patch.object(web_server, "DRAIN_SECONDS", drain):
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.stop()
            thread.join()
            gc.set_threshold(*thresholds)


@contextlib.contextmanager
def serving_with(engine: Engine, **options: Any) -> Iterator[str]:
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


def are_waiting(url: str, *texts: str) -> bool:
    """Returns whether what waits for a batch costs as much as these sentences."""
    tokens = sum(map(len, network().tokenizer.encode_source(texts)))
    return metric(url, "waiting_cost") == tokens * OPTIONS.beam_size


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
