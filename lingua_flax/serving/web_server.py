"""The server process: it listens, and it stops without losing a request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from lingua_flax.host.errors import UserError

DRAIN_SECONDS = 0.5


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on the host, an IPv6 address without brackets, and port.

    Raises UserError if the address is unknown or not one of this machine, or the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # to which create_server has added the address
        raise UserError(f"cannot listen on {host}, port {port} ({reason})") from error


class WebServer(uvicorn.Server):
    """Runs an application until SIGTERM or Ctrl-C; requests it has accepted are still answered.

    A client that keeps its connection may send the next request just when the server stops. If uvicorn closed the
    connection at once, that request would be lost (24 of 1,544 under load: benchmarks/serving.py).
    """

    def __init__(self, app: ASGIApp, on_stop: Callable[[], None], *, drain: float = DRAIN_SECONDS):
        """Creates a server.

        Args:
          on_stop: called when the server begins to stop; from then on the application should refuse requests.
          drain: seconds for which open connections may send another request, each of which is then closed.
        """
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
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
