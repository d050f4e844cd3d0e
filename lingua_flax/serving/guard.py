"""What is refused before a request's body is read: foreign hosts and origins, and bodies that are too large."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "content-security-policy": "default-src 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware that checks every request and adds headers to every response.

    A page of another site can send requests to a server on the user's own machine, even by giving its own host name the
    address 127.0.0.1 (DNS rebinding). Such a request names a foreign host or, if it is a POST, a foreign origin.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str], max_body: int):
        """Creates the middleware.

        The server may be addressed by the names of the loopback interface and `allowed_hosts`; `max_body` is in bytes.
        """
        self._app = app
        self._allowed = {host.lower() for host in allowed_hosts} - set(LOOPBACK)
        self._hosts = self._allowed | set(LOOPBACK)
        self._max_body = max_body
        self._too_large = f"the request is larger than {max_body:,} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answers = self._refusal(scope["method"], Headers(scope=scope)) or self._app
        await answers(scope, self._limited(receive), send_with_headers)

    def _is_own(self, origin: str, host: str) -> bool:
        """Returns whether a page is this server's own; a proxy may pass on another host than the browser names."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.netloc == host or parts.hostname in self._allowed

    def _refusal(self, method: str, headers: Headers) -> JSONResponse | None:
        """Returns the answer to a request that is refused because of its headers."""
        hosts = [value.lower() for value in headers.getlist("host")]
        if len(hosts) != 1 or _name(hosts[0]) not in self._hosts:
            return _refused(403, "the request names another host than this server; allow it with --allowed-host")
        origins = headers.getlist("origin")
        if method not in ("GET", "HEAD") and not all(self._is_own(origin.lower(), hosts[0]) for origin in origins):
            return _refused(403, "requests from pages of other sites are refused")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body:
            return _refused(413, self._too_large)
        return None

    def _limited(self, receive: Receive) -> Receive:
        """Returns `receive` with a limit on the size of a body whose length was not announced."""
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise HTTPException(413, self._too_large)
            return message

        return limited


def _name(host: str) -> str:
    """Returns a host without its port, an IPv6 address also without its brackets."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]")


def _refused(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status, {"connection": "close"})
