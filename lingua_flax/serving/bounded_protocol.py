"""HTTP/1.1 with limits on what a client may send, in bytes and seconds, and on the number of connections.

uvicorn has none of them: headers of 75 MB took 2 GB of memory, and connections that sent nothing stayed open for ever.
By its code, granian, embedded in another program, would lose requests when it stops.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

MAX_HEADERS = 2**16  # bytes
HEADERS_SECONDS = 10.0  # from the opening of a connection, or the first byte of a later request, to the last header
BODY_SECONDS = 30.0
LINGER_SECONDS = 5.0  # for which what a refused client still sends is read: it would not see the answer otherwise
WARNING_SECONDS = 60.0  # between warnings


@dataclasses.dataclass
class Limits:
    """Limits of a server."""

    connections: int
    body: int  # bytes
    bodies: int = 2**26  # bytes of all that are not complete
    unfinished: dict[BoundedProtocol, int] = dataclasses.field(default_factory=dict)  # the bytes sent of each of those
    warned: float = -WARNING_SECONDS


class BoundedProtocol(HttpToolsProtocol):
    """A connection. What exceeds a limit is refused without the application. Public methods are those of uvicorn."""

    def __init__(self, limits: Limits, **arguments: Any):
        super().__init__(**arguments)
        self._limits = limits
        self._too_large = f"the request is larger than {limits.body:,} bytes"
        self._header_bytes = self._body_bytes = 0  # of the request that is arriving
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_within(HEADERS_SECONDS)
        if len(self.connections) > self._limits.connections:
            if time.monotonic() - self._limits.warned > WARNING_SECONDS:
                self._limits.warned = time.monotonic()
                log.warning("more than %d connections: those that wait longest are closed", self._limits.connections)
            waiting = [own for own in cast(set[BoundedProtocol], self.connections) if own._is_waiting]
            min(waiting, key=lambda own: own._since)._refuse(503, "there are too many connections")

    @property
    def _is_waiting(self) -> bool:  # for the client
        return self in self._limits.unfinished or self.cycle is None or self.cycle.response_complete

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
        super().data_received(data)
        if self._header_bytes > MAX_HEADERS:
            self._refuse(431, f"the headers are larger than {MAX_HEADERS:,} bytes")
        elif unfinished.get(self, 0) > 2 * self._limits.body + MAX_HEADERS:  # with lengths of chunks, and trailers
            self._refuse(413, self._too_large)
        elif sum(unfinished.values()) > self._limits.bodies:
            max(unfinished, key=unfinished.__getitem__)._refuse(503, "too much is being sent; try again later")

    def on_headers_complete(self) -> None:
        self._header_bytes = self._body_bytes = 0
        self._check_body(int(dict(self.headers).get(b"content-length", 0)))
        super().on_headers_complete()
        self._limits.unfinished[self] = 0
        self._expect_within(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        super().on_body(body)

    def _check_body(self, size: int) -> None:
        if size > self._limits.body:
            self._refuse(413, self._too_large)
            raise ValueError  # ends the parser

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._forget_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_request()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self in self._limits.unfinished:
            self._refuse(503, "the server is stopping")
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _expect_within(self, seconds: float) -> None:
        """Gives the client so many seconds to send all headers, or the whole body."""
        if self._timer:
            self._timer.cancel()
        self._since = time.monotonic()
        self._timer = self.loop.call_later(seconds, self._refuse, 408, "the request took too long to arrive")

    def _forget_request(self) -> None:
        self._limits.unfinished.pop(self, None)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, message: str) -> None:
        """Answers, unless the application does, and closes the connection once the client has, or seconds later."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._forget_request()
        self._unset_keepalive_if_required()
        is_answering = bool(self.cycle and self.cycle.response_started and not self.cycle.response_complete)
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True  # for the application
            self.cycle.message_event.set()
        if not is_answering:
            body = json.dumps({"error": message})
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
