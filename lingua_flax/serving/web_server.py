"""The server process: it listens, bounds what clients may send, and stops without losing a request.

uvicorn has no limits on bytes, seconds and connections: headers of 75 MB took 2 GB of memory, and connections that sent
nothing stayed open for ever. By its code, granian, embedded in another program, would lose requests when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lingua_flax.host.errors import UserError

log = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5  # for which open connections may send another request, each of which is then closed
STOP_SECONDS = 4  # for answers, before those that are still being sent are cut off
MAX_CONNECTIONS = 512
MAX_ENDING = 64  # connections, besides, that are refused or closed, but not gone yet
OTHER_FILES = MAX_ENDING + 100  # that the process may open
FILES_PATH = b"/translate_file"  # how the paths end to which files may be sent
MAX_PIPELINED = 16  # requests that wait on a connection for the answer to an earlier one
MAX_HEADERS = 2**16  # bytes
HEADERS_SECONDS = 10.0  # from the opening of a connection, or the first byte of a later request, to the last header
BODY_SECONDS = 30.0
LINGER_SECONDS = 5.0  # for which what a refused client still sends is read: it would not see the answer otherwise
WRITE_SECONDS = 30.0  # after which a client that reads nothing of its answer is given up
WARNING_SECONDS = 60.0  # between warnings


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on the host, an IPv6 address without brackets; raises UserError if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # to which create_server has added the address
        raise UserError(f"cannot listen on {host}, port {port} ({reason})") from error


def max_connections() -> int:
    """Returns how many connections may be open: fewer if the process may open few files, or accepting would fail."""
    try:
        import resource
    except ImportError:  # on Windows
        return MAX_CONNECTIONS
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if own == resource.RLIM_INFINITY else own for own in limits)
    wanted = min(hard, MAX_CONNECTIONS + OTHER_FILES)
    if soft < wanted:  # and not beyond, which macOS refuses
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
            soft = wanted
    return max(1, min(MAX_CONNECTIONS, soft - OTHER_FILES))


@dataclasses.dataclass
class ConnectionLimits:
    """Limits of a server."""

    connections: int
    body: int  # bytes
    files: int = 2**24  # bytes of a body with a file
    bodies: int = 2**26  # bytes of all that are not complete
    unfinished: dict[BoundedProtocol, int] = dataclasses.field(default_factory=dict)  # the bytes sent of each of those
    warned: float = -WARNING_SECONDS


class BoundedProtocol(HttpToolsProtocol):
    """A connection. What exceeds a limit is refused without the application. Public methods are those of uvicorn."""

    def __init__(self, limits: ConnectionLimits, **arguments: Any):
        super().__init__(**arguments)
        self._limits = limits
        self._header_bytes = self._body_bytes = 0  # of the request that is arriving
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None  # while others wait in `pipeline`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that `pause_writing` is called as soon as the client does not read
        self._expect_within(HEADERS_SECONDS)
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def _make_room(self) -> None:
        connections = sorted(cast(set[BoundedProtocol], self.connections), key=lambda own: own._since)
        ending = [own for own in connections if own._is_refused or own.transport.is_closing()]
        for own in ending[:-MAX_ENDING]:
            own.transport.abort()
        if len(connections) - len(ending) > self._limits.connections:
            if time.monotonic() - self._limits.warned > WARNING_SECONDS:
                self._limits.warned = time.monotonic()
                log.warning("more than %d connections: those that wait longest are closed", self._limits.connections)
            waiting = next(own for own in connections if own not in ending and own._is_waiting)
            waiting._refuse(503, "there are too many connections")

    @property
    def _is_waiting(self) -> bool:  # for the client
        is_idle = self._answered is None or self._answered.response_complete
        return is_idle or self._timer is not None or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        unfinished = self._limits.unfinished
        if self in unfinished:
            unfinished[self] += len(data)
        else:
            self._header_bytes += len(data)
            if self._timer is None and self._is_waiting:
                self._expect_within(HEADERS_SECONDS)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._header_bytes > MAX_HEADERS:
            self._refuse(431, f"the headers are larger than {MAX_HEADERS:,} bytes")
        elif unfinished.get(self, 0) > 2 * self._largest_body + MAX_HEADERS:  # with lengths of chunks, and trailers
            self._refuse_body()
        elif sum(unfinished.values()) > self._limits.bodies:
            max(unfinished, key=unfinished.__getitem__)._refuse(503, "too much is being sent; try again later")

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            # Java asks for HTTP/2 this way, which may be ignored (RFC 9110, section 7.8). httptools takes what follows
            # for the other protocol, so the request is parsed again as if it had not asked; CONNECT cannot be.
            headers = [own for own in self.headers if own[0] != b"upgrade"]
            if headers == self.headers:
                return self._refuse(400, "Invalid HTTP request received.")
            line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            head = [line, *(b": ".join(own) for own in headers), b"", b""]
            self.parser = httptools.HttpRequestParser(self)  # of HTTP/1.0, the old one takes no more
            self._parse(b"\r\n".join(head) + data[upgrade.args[0] :])

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._header_bytes = self._body_bytes = 0
        self._check_body(int(dict(self.headers).get(b"content-length", 0)))
        super().on_headers_complete()
        if not self.pipeline:
            self._answered = self.cycle
        elif len(self.pipeline) > MAX_PIPELINED:
            self._refuse(429, f"more than {MAX_PIPELINED} requests wait for the answer to another one")
            raise ValueError  # ends the parser
        self._limits.unfinished.setdefault(self, 0)
        self._expect_within(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        super().on_body(body)

    def _check_body(self, size: int) -> None:
        if size > self._largest_body:
            self._refuse_body()
            raise ValueError  # ends the parser

    @property
    def _largest_body(self) -> int:
        is_file = self.url.partition(b"?")[0].endswith(FILES_PATH)
        return self._limits.files if is_file else self._limits.body

    def _refuse_body(self) -> None:
        self._refuse(413, f"the request is larger than {self._largest_body:,} bytes")

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._forget_request()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answered, _ = self.pipeline[-1]
        super().on_response_complete()
        self._since = time.monotonic()
        if self.pipeline:
            self.flow.pause_reading()
        elif self._timer is None:
            self._forget_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._since = time.monotonic()
        self._expect_reader(sys.maxsize)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timer.cancel()

    def _expect_reader(self, unsent: int) -> None:
        """Closes the connection unless the client has read something since so many bytes were not sent."""
        if (left := self.transport.get_write_buffer_size()) >= unsent:
            self.transport.abort()
        else:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._expect_reader, left)

    def connection_lost(self, exc: Exception | None) -> None:
        self._abandon()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._timer and self in self._limits.unfinished:
            self._refuse(503, "the server is stopping")
        super().shutdown()

    def _expect_within(self, seconds: float) -> None:
        """Gives the client so many seconds to send all headers, or the whole body."""
        if self._timer:
            self._timer.cancel()
        self._since = time.monotonic()
        self._timer = self.loop.call_later(seconds, self._refuse, 408, "the request took too long to arrive")

    def _forget_request(self) -> None:
        if not self.pipeline:
            self._limits.unfinished.pop(self, None)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _abandon(self) -> None:
        self.pipeline.clear()
        self._forget_request()
        if self._answered:
            self._answered.disconnected = True  # for the application
            self._answered.message_event.set()

    def _refuse(self, status: int, message: str) -> None:
        """Answers, unless the application does, and closes the connection once the client has, or seconds later."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._abandon()
        self._unset_keepalive_if_required()
        if not self._answered or self._answered.response_complete or not self._answered.response_started:
            body, retry = json.dumps({"error": message}), "retry-after: 1\r\n" if status == 503 else ""
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{retry}"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)


class WebServer(uvicorn.Server):
    """Runs an application until SIGTERM or Ctrl-C; requests it has accepted are still answered.

    A client that keeps its connection may send the next request just when the server stops. If uvicorn closed the
    connection at once, that request would be lost (24 of 1,544 under load: benchmarks/serving.py).
    """

    def __init__(self, app: ASGIApp, on_stop: Callable[[], None], limits: ConnectionLimits):
        """Creates a server, which calls `on_stop` when it begins to stop: from then on, requests should be refused."""
        config = uvicorn.Config(
            app,
            http=functools.partial(BoundedProtocol, limits),  # type: ignore[arg-type]  # it is called, no more
            ws="none",  # whatever is installed
            log_level="error",  # its warnings are about what clients send
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing asks where a request comes from
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)
        self._on_stop = on_stop

    def stop(self) -> None:
        """Makes the server stop, as SIGTERM does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses connections and further requests, waits for those that are under way, and stops the application."""
        for server in self.servers:
            server.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        self._on_stop()
        await asyncio.sleep(DRAIN_SECONDS)
        await super().shutdown(sockets)
