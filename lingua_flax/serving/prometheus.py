"""Metrics for Prometheus: requests, how long they took, and how their sentences were searched."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Others are counted together.
PATHS: tuple[str, ...] = ("/", "/health", "/docs", "/spec", "/languages", "/run", "/examples")
PATHS += ("/translate", "/translate_file", "/inspect", "/detect")
CLIENT_LEFT = 499  # as nginx counts it; nobody receives this status


class Metrics:
    """The metrics of one server."""

    def __init__(self, waiting: Callable[[], int]):
        """Creates the metrics; `waiting` returns what waits for a batch, in tokens times beams."""
        self.registry = own = CollectorRegistry()
        sizes = [2**power for power in range(8)]
        short = [0.0001 * 2**power for power in range(14)]
        prefix = "lingua_flax_"
        self.requests = Counter(f"{prefix}requests", "Requests", ["path", "status"], registry=own)
        self.seconds = Histogram(f"{prefix}request_seconds", "Seconds to answer a request", ["path"], registry=own)
        self.queue_seconds = Histogram(f"{prefix}queue_seconds", "Seconds that a sentence waits", registry=own)
        self.step_seconds = Histogram(f"{prefix}step_seconds", "Seconds of a step", buckets=short, registry=own)
        self.batch_sentences = Histogram(f"{prefix}batch_sentences", "Of a batch", buckets=sizes, registry=own)
        self.source_tokens = Counter(f"{prefix}source_tokens", "Tokens of the sentences searched", registry=own)
        self.target_tokens = Counter(f"{prefix}target_tokens", "Tokens of the best translations", registry=own)
        self.running = Gauge(f"{prefix}running_sentences", "Sentences that are being searched", registry=own)
        waits = Gauge(f"{prefix}waiting_cost", "Tokens times beams that wait for a batch", registry=own)
        waits.set_function(waiting)

    def count(self, path: str, status: int, started: float) -> None:
        """Counts and times a request that is answered now, and started at a time of `time.perf_counter`."""
        path = path if path in PATHS else "other"
        self.requests.labels(path, status).inc()
        self.seconds.labels(path).observe(time.perf_counter() - started)
