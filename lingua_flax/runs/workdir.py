"""The folder of a run: its resolved config, tokenizer, metrics and checkpoints."""

import itertools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lingua_flax.host.errors import UserError
from lingua_flax.host.files import why_not_writable, write_atomically
from lingua_flax.host.locks import lock_until_exit
from lingua_flax.runs.metrics import parse_metrics

LOCK_NAME = "training.lock"
NOT_IN_PATHS = frozenset("\\*?[")  # Orbax 0.12 takes such a path for a pattern, and tensorstore a backslash for a slash
MAX_LINE_BYTES = 2**18  # of metrics.jsonl; a validation has the text of its samples


class Workdir:
    """The files of one run. Only `lock`, `create` and the methods that write files change anything on disk."""

    def __init__(self, path: Path):
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = (path / "checkpoints").absolute()  # Orbax does not accept relative paths
        self._unlock: Callable[[], None] | None = None

    def check_creatable(self) -> None:
        """Raises UserError if the folder cannot be created or written; leaves nothing behind."""
        if odd := sorted(NOT_IN_PATHS & set(self.checkpoints.as_posix())):
            raise UserError(
                f"{self.path}: checkpoints cannot be read from a path with {' '.join(odd)}; choose another one"
            )
        paths = [self.path, *self.path.absolute().parents]
        existing = next(path for path in paths if path.exists() or path.is_symlink())  # a link may lead nowhere
        if not existing.is_dir():
            raise UserError(f"{existing}: not a directory; choose another --workdir")
        if reason := why_not_writable(existing):
            raise UserError(f"{existing}: cannot be written ({reason}); choose another --workdir")

    def lock(self) -> None:
        """Locks the folder, if it exists, until `close`; raises UserError if another run is training in it."""
        if not self._unlock and self.path.is_dir():
            refusal = "is training in it; wait until it ends, stop it, or choose another --workdir"
            self._unlock = lock_until_exit(self.path / LOCK_NAME, self.path, refusal)

    def close(self) -> None:
        """Unlocks the folder, if it is locked, which the end of the process does too."""
        if self._unlock:
            self._unlock()
            self._unlock = None

    def lock_holder(self) -> str:
        """Returns the text that names the process that trains in the folder; "" if none does."""
        path = self.path / LOCK_NAME
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def create(self) -> None:
        """Creates the folder and locks it; raises UserError if another process trains in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()

    def append_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        """Appends JSON objects, one per line, to metrics.jsonl; killing the process afterwards loses none of them."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def sync_metrics(self) -> None:
        """Waits until metrics.jsonl is on disk, so that no checkpoint is ahead of it even after a power cut."""
        if self.metrics.exists():
            with open(self.metrics, "rb") as file:
                os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the objects in metrics.jsonl, without a last line that was cut off by a crash.

        Raises UserError if the file contains anything but complete lines of metrics.
        """
        if not self.metrics.exists():
            return []
        if not self.metrics.is_file():
            raise UserError(f"{self.metrics}: not a file; move it away to continue the run")
        with open(self.metrics, encoding="utf-8", errors="replace") as file:
            lines = (line for line in file if line.endswith("\n"))
            return [parse_metrics(line, f"{self.metrics}, line {number}") for number, line in enumerate(lines, 1)]

    def last_step(self) -> int:
        """Returns the step of the last complete line of metrics.jsonl, or 0 if there is none; reads only its end."""
        if not self.metrics.exists():
            return 0
        with open(self.metrics, "rb") as file:
            file.seek(max(0, self.metrics.stat().st_size - MAX_LINE_BYTES))
            complete = file.read().rpartition(b"\n")[0]
        last = complete.rpartition(b"\n")[2]
        return int(json.loads(last)["step"]) if last else 0

    def set_metrics_aside(self) -> Path:
        """Renames metrics.jsonl, so that a run can start again without losing it; returns the new path."""
        paths = (self.path / f"metrics.{number}.jsonl" for number in itertools.count(1))
        return self.metrics.rename(next(path for path in paths if not path.exists()))

    def replace_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        """Replaces the lines of metrics.jsonl, if the file exists."""
        if self.metrics.exists():
            write_atomically(self.metrics, "".join(json.dumps(line) + "\n" for line in lines).encode())
