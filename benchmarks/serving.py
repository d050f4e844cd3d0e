"""Puts lingua-flax serve under load, and compares its throughput with that of lingua-flax translate on the same lines.

Run from the repository root:
  python benchmarks/serving.py --workdir checkpoints/tiny --input FILE [--clients 64] [--lines 1] [--seconds 60] \\
      [--leaving] [-- OPTIONS OF lingua-flax serve]

Each client sends --lines random lines of the file a request, one request after the other over a connection that it
keeps, and compares the answers with those of lingua-flax translate: first while the server compiles, for at most
WARM_UP seconds, then for --seconds. Then the server is stopped by SIGTERM under the same load: each request that was
sent must be answered, with the translation or with status 503. The clients write and read HTTP themselves, as they run
on the cores of the server: those of http.client took 0.2 ms of CPU time for a line. With --leaving, requests have 1 to
--lines lines, and of one in five, the client closes its connection within a second.
"""

import argparse
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import psutil

from lingua_flax.__main__ import exit_status
from lingua_flax.data.text_files import read_lines
from lingua_flax.options.config_files import read_workdir_config

ROOT = Path(__file__).parent.parent
WARM_UP = 90  # seconds at most, in which the server still compiles
HEADERS = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Server:
    """lingua-flax serve in a process of its own."""

    def __init__(self, workdir: Path, options: Sequence[str]):
        """Starts the server and waits until it is ready."""
        command = [sys.executable, "-m", "lingua_flax", "serve", "--workdir", str(workdir), "--port", "0", *options]
        started = time.perf_counter()
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.is_compiled = threading.Event()
        log = self.process.stderr
        assert log
        for line in log:
            if line.startswith("listening on "):
                self.port = int(line.rsplit(":", 1)[1])
            if line == "ready\n":
                break
        else:
            raise SystemExit("the server did not start")
        print(f"ready after {time.perf_counter() - started:.1f} s", flush=True)
        threading.Thread(target=self._read, args=(log,), daemon=True).start()

    def _read(self, log: IO[str]) -> None:
        for line in log:
            if line.startswith("all programs are compiled"):
                self.is_compiled.set()

    @property
    def memory(self) -> int:
        """Resident memory, in bytes."""
        return psutil.Process(self.process.pid).memory_info().rss


class Client:
    """A client that keeps its connection, and counts what happens to its requests."""

    def __init__(self, port: int, languages: tuple[str, str]):
        self._address = ("127.0.0.1", port)
        self._connection: socket.socket | None = None
        self._languages = dict(zip(("source", "target"), languages, strict=True))
        self.right = self.wrong = self.refused = self.lost = 0
        self.latencies: list[float] = []

    def send(self, lines: Sequence[str]) -> None:
        """Sends a request with these lines."""
        body = json.dumps({"q": list(lines)} | self._languages).encode()
        if not self._connection:
            self._connection = socket.create_connection(self._address, timeout=120)
            self._answers = self._connection.makefile("rb")
        self._connection.sendall(HEADERS % len(body) + body)

    def _receive(self) -> tuple[int, dict[str, Any]]:
        """Returns the status and the content of an answer; raises OSError or ValueError if none comes."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := self._answers.readline().lower()):
                raise ConnectionError
            head += line
        content = json.loads(self._answers.read(int(head.split(b"content-length:")[1].split()[0])))
        if b"connection: close" in head:
            self.close()
        return int(head.split()[1]), content

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection:
            self._answers.close()
            self._connection.close()
            self._connection = None

    def translate(self, lines: Sequence[str], expected: Sequence[str]) -> None:
        """Translates the lines in one request, and compares the result."""
        started = time.perf_counter()
        self.send(lines)
        try:
            status, content = self._receive()
        except (OSError, ValueError):
            self.lost += len(lines)
            raise ConnectionError from None
        self.latencies.append(time.perf_counter() - started)
        if status == 503:
            self.refused += len(lines)
        elif content.get("translatedText") == list(expected):
            self.right += len(lines)
        else:
            self.wrong += len(lines)

    def run(self, pairs: Sequence[tuple[str, str]], lines: int, seed: int, done: threading.Event) -> None:
        """Sends random lines until `done` is set or the server does not accept connections."""
        generator = random.Random(seed)
        while not done.is_set():
            try:
                self.translate(*zip(*generator.choices(pairs, k=lines), strict=True))
            except ConnectionError:
                return


class LeavingClient(Client):
    """A client that gives up some of its requests."""

    def translate(self, lines: Sequence[str], expected: Sequence[str]) -> None:
        """Sends some of the lines, and reads the answer or closes the connection."""
        count = random.choice([1, 3, 10, len(lines)])
        if random.random() > 0.2:
            super().translate(lines[:count], expected[:count])
            return
        self.send(lines[:count])
        time.sleep(random.random())
        self.close()


def load(clients: Sequence[Client], pairs: Sequence[tuple[str, str]], lines: int, action: Callable[[], object]) -> None:
    """Runs the clients for as long as `action` takes."""
    done = threading.Event()
    with ThreadPoolExecutor(len(clients)) as threads:
        for seed, client in enumerate(clients):
            threads.submit(client.run, pairs, lines, seed, done)
        action()
        done.set()


def translated(workdir: Path, lines: Sequence[str]) -> list[str]:
    """Returns what lingua-flax translate makes of the lines."""
    command = [sys.executable, "translate.py", "--workdir", str(workdir)]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(
        command, cwd=ROOT, input=text, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()


def translate_rate(workdir: Path, lines: Sequence[str], seconds: float) -> float:
    """Returns the lines per second that lingua-flax translate translates, without loading and compiling.

    It translates the lines once, and then as many times as take about `seconds`; the rate is that of the difference.
    """

    def measure(repetitions: int) -> float:
        started = time.perf_counter()
        translated(workdir, list(lines) * repetitions)
        return time.perf_counter() - started

    once = measure(1)
    repetitions = 2 + int(seconds / once)
    return (repetitions - 1) * len(lines) / (measure(repetitions) - once)


def report(title: str, clients: Sequence[Client], seconds: float) -> None:
    """Prints what happened to the requests, their rate and their latencies."""
    counts = {name: sum(getattr(client, name) for client in clients) for name in ("right", "wrong", "refused", "lost")}
    latencies = sorted(latency for client in clients for latency in client.latencies)
    percentiles = statistics.quantiles(latencies, n=100)
    print(
        f"{title}: {counts['right'] / seconds:.0f} lines/s; "
        f"{', '.join(f'{count} {name}' for name, count in counts.items())};"
        f" latency p50 {1000 * percentiles[49]:.0f} ms, p99 {1000 * percentiles[98]:.0f} ms",
        flush=True,
    )


def command(argv: Sequence[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--lines", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--leaving", action="store_true")
    parser.add_argument("server_options", nargs="*")
    options = parser.parse_args(argv)
    lines = list(read_lines(options.input))
    data = read_workdir_config(options.workdir).data
    languages = (data.source_language, data.target_language)
    pairs = list(zip(lines, translated(options.workdir, lines), strict=True))  # which compiles, too
    rate = translate_rate(options.workdir, lines, options.seconds)
    print(f"lingua-flax translate: {rate:.0f} lines/s", flush=True)
    server = Server(options.workdir, options.server_options)

    def measure(title: str, action: Callable[[], object]) -> None:
        clients = [kind(server.port, languages) for _ in range(options.clients)]
        started = time.perf_counter()
        load(clients, pairs, options.lines, action)
        report(title, clients, time.perf_counter() - started)

    def wait() -> None:
        for minute in range(1, int(options.seconds // 60) + 1):
            time.sleep(60)
            print(f"{server.memory / 2**20:,.0f} MiB after {minute} min", flush=True)
        time.sleep(options.seconds % 60)

    def stop() -> None:
        time.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()

    kind = LeavingClient if options.leaving else Client
    title = f"{options.clients} clients, {options.lines} lines a request"
    measure(f"{title}, while it compiles", lambda: server.is_compiled.wait(WARM_UP))
    measure(title, wait)
    measure("stopped under load", stop)
    print(f"exit status {server.process.returncode}")


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
