"""Metrics for Prometheus: requests, how long they took, and how lines were batched."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Others are counted together.
PATHS = ("/", "/translate", "/inspect", "/detect", "/languages", "/run", "/examples", "/health", "/metrics", "/docs")


class Metrics:
    """The metrics of one server."""

    def __init__(self, waiting: Callable[[], int]):
        """Creates the metrics; `waiting` returns the number of lines that wait for a batch."""
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests", ["path", "status"], registry=self.registry)
        self.seconds = Histogram("request_seconds", "Seconds to answer a request", ["path"], registry=self.registry)
        sizes = [2**power for power in range(8)]
        self.batch_lines = Histogram("batch_lines", "Lines of a batch", buckets=sizes, registry=self.registry)
        Gauge("waiting_lines", "Lines that wait for a batch", registry=self.registry).set_function(waiting)


class Measured:
    """ASGI middleware that counts and times requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"
        started = time.perf_counter()

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, message["status"]).inc()
                self._metrics.seconds.labels(path).observe(time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, send_and_count)
