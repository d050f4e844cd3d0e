"""Atomic writes, and checks of file names before any work is done."""

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from lingua_flax.host.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file atomically: even after a power failure, it has either its previous or its complete new content."""
    with new_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a file to write, which gets its name if the block succeeds and is removed otherwise.

    A link stays, and so does what is no file, such as a pipe, which is written as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder, which becomes `path` if the block succeeds and is removed otherwise.

    Raises UserError if `path` exists by then.
    """
    folder = path.absolute().with_name(f".{path.name}.{secrets.token_hex(4)}.incomplete")
    folder.mkdir()
    try:
        yield folder
        try:
            folder.rename(path)
        except OSError as error:
            if path.exists() or path.is_symlink():
                raise UserError(f"{path} exists already; delete it or choose another name") from error
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Raises UserError if a file cannot be written, without changing anything on disk."""
    folder = path.absolute().parent
    if path.is_dir():
        reason: str | None = "it is a folder"
    elif path.exists():
        reason = None if os.access(path, os.W_OK) else "it is write-protected"
    else:
        reason = why_not_writable(folder) if folder.is_dir() else f"there is no folder {folder}"
    if reason:
        raise UserError(f"{path}: cannot be written ({reason})")


def check_free_space(folder: Path, size: int) -> None:
    """Raises the error of a full disk unless `size` bytes are free on the file system of a folder."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def check_distinct_files(read: Iterable[Path | None], written: Iterable[Path | None]) -> None:
    """Raises UserError if an output file is also an input file or another output file, whatever their names.

    None stands for an option that is not given. Devices such as /dev/null may be used more than once.
    """
    to_read, to_write = (
        [path.resolve() for path in paths if path and (path.is_file() or not path.exists())]
        for paths in (read, written)
    )
    if conflict := next((path for path in to_write if path in to_read or to_write.count(path) > 1), None):
        raise UserError(f"{conflict}: would be used twice; choose a separate file for each output")


def why_not_writable(folder: Path) -> str | None:
    """Returns the reason why no file can be created in a folder, or None if one can."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror
    return None
