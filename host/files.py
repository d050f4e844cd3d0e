"""A run's folder: its resolved config, tokenizer, metrics and checkpoints."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from host.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.partial")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def check_writable(path: Path) -> None:
    """Raises UserError where a file of this name cannot be written; leaves nothing behind."""
    folder = path.absolute().parent
    if path.is_dir():
        reason: str | None = "it is a folder"
    elif path.exists():
        reason = None if os.access(path, os.W_OK) else "it may not be changed"
    else:
        reason = why_not_writable(folder) if folder.is_dir() else f"there is no folder {folder}"
    if reason:
        raise UserError(f"{path}: cannot be written ({reason})")


def check_distinct_files(read: Iterable[Path | None], written: Iterable[Path | None]) -> None:
    """Raises UserError where a file to write is one to read, or is named twice."""
    to_read, to_write = ([path.absolute() for path in paths if path] for paths in (read, written))
    if twice := next((path for path in to_write if path in to_read or to_write.count(path) > 1), None):
        raise UserError(f"{twice}: named for two things at once; what is written needs a file of its own")


def why_not_writable(folder: Path) -> str | None:
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror
    return None
