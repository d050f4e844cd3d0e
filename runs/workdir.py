"""A run's folder: its resolved config, tokenizer, metrics and checkpoints."""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from host.errors import UserError
from host.files import why_not_writable, write_atomically

LOCK_NAME = "training.lock"
LONGEST_LINE = 4096  # bytes of a line of metrics.jsonl, at most


log = logging.getLogger(__name__)


class Workdir:
    """The files of one run. Only `lock`, `create` and the write methods change anything on disk."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: FileLock | None = None

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return (self.path / "checkpoints").absolute()  # Orbax takes no relative path

    def check_creatable(self) -> None:
        """Raises UserError where the folder cannot be made or written; leaves nothing behind."""
        existing = next(path for path in [self.path, *self.path.absolute().parents] if path.exists())
        if not existing.is_dir():
            raise UserError(f"{existing}: not a directory; choose another --workdir")
        if reason := why_not_writable(existing):
            raise UserError(f"{existing}: cannot be written ({reason}); choose another --workdir")

    def lock(self) -> None:
        """Keeps other trainings out of the folder, where it is there, until this process ends, in whatever way.

        The operating system holds the lock, so that a killed process leaves none; the file says who has it.

        Raises:
          UserError: another process has it.
        """
        if self._lock or not self.path.is_dir():
            return
        path = self.path / LOCK_NAME
        self._lock = FileLock(path)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise UserError(
                f"{self.path}: {path.read_text(encoding='utf-8') or 'another process'} is training in it; wait for its "
                "end, stop it, or choose another --workdir"
            ) from None
        except OSError as error:
            log.warning("%s: cannot be locked (%s); see to it that only one process trains in it", path, error.strerror)
            return
        atexit.register(path.unlink, missing_ok=True)
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")

    def create(self) -> None:
        """Makes the folder, and keeps other trainings out of it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()

    def write(self, name: str, content: bytes) -> None:
        """Writes a file so that it is there whole or not at all."""
        write_atomically(self.path / name, content)

    def append_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        """Adds one JSON object a line to metrics.jsonl; a killed process loses none of them."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def sync_metrics(self) -> None:
        """Waits until metrics.jsonl is on disk: no checkpoint knows more than it, also after a power cut."""
        if self.metrics.exists():
            with open(self.metrics, "rb") as file:
                os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The objects of metrics.jsonl; a last line cut off by a crash is not one.

        Raises:
          UserError: it holds anything else than what append_metrics writes.
        """
        if not self.metrics.exists():
            return []
        if not self.metrics.is_file():
            raise UserError(f"{self.metrics}: not a file; move it out of the way to go on with the run")
        found = []
        with open(self.metrics, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):
                    found.append(_metrics_of(line, f"{self.metrics}, line {number}"))
        return found

    def last_step(self) -> int:
        """The step of the last line of metrics.jsonl, 0 if there is none; reads only the end of the file."""
        if not self.metrics.exists():
            return 0
        with open(self.metrics, "rb") as file:
            file.seek(max(0, self.metrics.stat().st_size - LONGEST_LINE))
            complete = file.read().rpartition(b"\n")[0]
        last = complete.rpartition(b"\n")[2]
        return int(json.loads(last)["step"]) if last else 0

    def replace_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        """Has these lines in metrics.jsonl instead of those that are there, if it is there at all."""
        if self.metrics.exists():
            self.write(self.metrics.name, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _metrics_of(line: str, place: str) -> dict[str, Any]:
    try:
        metrics = json.loads(line)
    except (ValueError, RecursionError):
        metrics = None
    if not isinstance(metrics, dict) or type(metrics.get("step")) is not int or not _are_numbers(metrics):
        raise UserError(f"{place}: not the metrics of a step; mend or remove this file to go on with the run")
    return metrics


def _are_numbers(metrics: dict[str, Any]) -> bool:
    """Whether all values are, where there are any, but the digest of a batch."""
    return all(isinstance(value, str if name == "batch" else int | float | None) for name, value in metrics.items())
