"""What is refused before a request's body is read: foreign hosts and origins."""

import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lingua_flax.serving.prometheus import Metrics

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ADMIN_PATHS = ("/livez", "/readyz", "/metrics")  # for a cluster, which addresses a server by its IP address
HEADERS = (
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:"),  # with the icons of /docs
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """ASGI middleware that checks and counts requests, and adds headers to every response.

    A page of another site can send requests to a server on the user's own machine, even by giving its own host name the
    address 127.0.0.1 (DNS rebinding). Such a request names a foreign host or, if it is a POST, a foreign origin.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, hosts: Collection[str], admin_port: int | None = None, root_path: str = ""
    ):
        """Lets the server be addressed by the names of the loopback interface and `hosts`.

        ADMIN_PATHS may have any name, and are answered on `admin_port` only if given. Paths may begin with `root_path`.
        """
        self._app, self._metrics = app, metrics
        self._allowed = {host.lower() for host in hosts} - set(LOOPBACK)
        self._hosts = self._allowed | set(LOOPBACK)
        self._admin_port = admin_port
        self._root_path = f"/{root_path.strip('/')}".rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].extend(HEADERS)
                if answers is self._app:
                    self._metrics.count(path, message["status"], started)
            await send(message)

        path, started = scope["path"], time.perf_counter()
        if path.startswith(f"{self._root_path}/"):
            path = path.removeprefix(self._root_path)
        is_admin = path in ADMIN_PATHS
        if self._admin_port and is_admin != (scope["server"][1] == self._admin_port):
            answers: ASGIApp = _refused(404, "Not Found")
        elif is_admin and scope["method"] in ("GET", "HEAD"):
            answers = self._app
        else:
            answers = self._refusal(scope) or self._app
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # of which uvicorn sends no body
        await answers({**scope, "method": method, "path": path}, receive, send_with_headers)

    def _is_own(self, origin: str, host: str) -> bool:
        """Returns whether a page is this server's own; a proxy may pass on another host than the browser names."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.netloc == host or parts.hostname in self._allowed

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        hosts, origins = ([value.lower() for value in headers.getlist(name)] for name in ("host", "origin"))
        if len(hosts) != 1 or _name(hosts[0]) not in self._hosts:
            return _refused(403, "the request names another host than this server; allow it with --allowed-host")
        if scope["method"] not in ("GET", "HEAD") and not all(self._is_own(origin, hosts[0]) for origin in origins):
            return _refused(403, "requests from pages of other sites are refused")
        return None


def _name(host: str) -> str:
    """Returns a host without its port, an IPv6 address also without its brackets."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]")


def _refused(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
