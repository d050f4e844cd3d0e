"""Connections between the processes of a run, by which all notice at once that one of them has ended.

JAX notices it in a joint computation; elsewhere, it aborts the others after a minute or two, with stacks of C++. Here,
each process is connected to the first one. A connection that closes without GOODBYE, or on which no BEAT comes any
more, ends all processes, each with one sentence that names the one which is missing. Processes that cannot be connected
are left to JAX.
"""

import contextlib
import logging
import multiprocessing
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

log = logging.getLogger(__name__)

GOODBYE = b"goodbye"
BEAT = b"."
BEAT_INTERVAL = 5.0  # seconds
SILENCE = 30.0  # seconds without BEAT after which a process counts as gone: it is stopped, or its host is
CONNECT_TIMEOUT = 30.0  # seconds in which all processes must have connected
GREETING_TIMEOUT = 5.0  # seconds
MAX_TEXT = 2000  # bytes of a text that other processes are told


def connect(host: str) -> Callable[[], None]:
    """Connects the processes, of which the first is reached at `host`; returns what says GOODBYE when all end."""
    connections = _to_others(host) if jax.process_index() == 0 else _to_first()
    for task in (_beat, _watch):
        threading.Thread(target=task, args=(connections,), daemon=True).start()

    def say_goodbye() -> None:
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(GOODBYE)

    return say_goodbye


def listen(port: int) -> socket.socket:
    """Returns a socket that listens on all addresses of this host; port 0 stands for any."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=dual)


def _to_others(host: str) -> dict[int, socket.socket]:
    token = secrets.token_hex(16)
    connections: dict[int, socket.socket] = {}
    with listen(0) as server:
        gather_texts(f"{token} {server.getsockname()[1]} {host}")
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while len(connections) < jax.process_count() - 1 and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            with contextlib.suppress(OSError):  # nobody came, or somebody else, who says nothing
                connection, _ = server.accept()
                connection.settimeout(GREETING_TIMEOUT)
                received = connection.recv(64).rstrip(BEAT)  # which may follow at once
                greeting, _, number = received.decode(errors="replace").partition(" ")
                if greeting == token:
                    connection.settimeout(None)
                    connections[int(number)] = connection
    if missing := sorted({*range(1, jax.process_count())} - {*connections}):
        effect = "if a process is killed, the others may end only minutes later"
        log.warning("process %s cannot reach %s: %s", ", ".join(map(str, missing)), host, effect)
    return connections


def _to_first() -> dict[int, socket.socket]:
    token, port, host = gather_texts("")[0].split(" ")
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT)
        connection.sendall(f"{token} {jax.process_index()}".encode())
        connection.settimeout(None)
        return {0: connection}
    except OSError:  # the first process warns of it
        return {}


def gather_texts(text: str) -> list[str]:
    """Returns the texts of all processes, each up to MAX_TEXT bytes; every process must call this."""
    own = np.frombuffer(text.encode(errors="backslashreplace")[:MAX_TEXT].ljust(MAX_TEXT, b"\0"), np.uint8)
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in multihost_utils.process_allgather(own)]


def _beat(connections: dict[int, socket.socket]) -> None:
    while True:
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(BEAT)
        time.sleep(BEAT_INTERVAL)


def _watch(connections: dict[int, socket.socket]) -> None:
    """Ends this process when another one has ended without GOODBYE or is silent, after it has told the rest."""
    heard = dict.fromkeys(connections, time.monotonic())
    with selectors.DefaultSelector() as selector:
        for number, connection in connections.items():
            selector.register(connection, selectors.EVENT_READ, number)
        while heard:
            for key, _ in selector.select(BEAT_INTERVAL):
                try:
                    received = connections[key.data].recv(64)
                except OSError:
                    received = b""
                message = received.strip(BEAT)
                if message.startswith(GOODBYE):
                    selector.unregister(key.fileobj)
                    del heard[key.data]
                elif message or not received:
                    _end(connections, int(message or key.data))
                else:
                    heard[key.data] = time.monotonic()
            for number, last in heard.items():
                if time.monotonic() > last + SILENCE:
                    _end(connections, number)


def _end(connections: dict[int, socket.socket], missing: int) -> None:
    for number, connection in connections.items():
        if number not in (0, missing):
            with contextlib.suppress(OSError):
                connection.sendall(str(missing).encode())
    remedy = "see its error message, then start all of them again to continue from the newest checkpoint"
    os.write(2, f"error: process {missing} of this run has ended before the others or is stopped; {remedy}\n".encode())
    for number, connection in connections.items():
        if number not in (0, missing):  # the first process ends last: without it, JAX aborts the others
            connection.settimeout(5.0)
            with contextlib.suppress(OSError):
                while connection.recv(64):
                    pass
    for worker in multiprocessing.active_children():
        worker.kill()  # one that still starts would print a traceback when its parent has gone
    os._exit(1)
