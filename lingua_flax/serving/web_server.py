"""The server process: it listens, and it stops without losing a request."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from lingua_flax.host.errors import UserError
from lingua_flax.serving.bounded_protocol import BoundedProtocol, Limits

DRAIN_SECONDS = 0.5
STOP_SECONDS = 4  # for answers, before those that are still being sent are cut off
MAX_CONNECTIONS = 512
OTHER_FILES = 100  # that the process may open


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on the host, an IPv6 address without brackets; raises UserError if none can."""
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
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, hard - OTHER_FILES))


class WebServer(uvicorn.Server):
    """Runs an application until SIGTERM or Ctrl-C; requests it has accepted are still answered.

    A client that keeps its connection may send the next request just when the server stops. If uvicorn closed the
    connection at once, that request would be lost (24 of 1,544 under load: benchmarks/serving.py).
    """

    def __init__(self, app: ASGIApp, on_stop: Callable[[], None], limits: Limits, *, drain: float = DRAIN_SECONDS):
        """Creates a server, which calls `on_stop` when it begins to stop.

        For `drain` seconds more, open connections may send another request, which the application should refuse.
        """
        config = uvicorn.Config(
            app,
            http=functools.partial(BoundedProtocol, limits),  # type: ignore[arg-type]  # it is called, no more
            log_level="error",  # its warnings are about what clients send
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)
        self._on_stop = on_stop
        self._drain = drain

    def stop(self) -> None:
        """Makes the server stop, as SIGTERM does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses connections and further requests, waits for those that are under way, and stops the application."""
        for server in self.servers:
            server.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        self._on_stop()
        await asyncio.sleep(self._drain)
        await super().shutdown(sockets)
