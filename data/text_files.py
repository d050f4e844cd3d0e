r"""Lines of text, read the same way everywhere: corpora, input to translate, references to score against; and written.

A line ends at "\n" and nowhere else, so that line numbers agree with wc, sed and other toolkits: U+2028, "\v", "\f",
U+0085 or a lone "\r" are part of the text. Of a file with Windows line ends the one "\r" before each "\n" is dropped,
and so is a byte-order mark at the start. A last line counts without its "\n" too; an empty file has no lines.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from host.errors import UserError

T = TypeVar("T")

_REASONS = {
    FileNotFoundError: "no such file; check the path",
    IsADirectoryError: "a folder, not a file; name the file in it",
    PermissionError: "may not be read; check its permissions",
}


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, of a gzip file where the name ends in .gz, without holding more than one.

    Raises:
        UserError: the file cannot be read, is a truncated or damaged gzip file, or is not UTF-8.
    """
    path = Path(path)
    try:
        with _open(path) as stream:
            yield from decode_lines(stream, str(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: truncated or damaged gzip file ({error}); fetch or compress it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that could not be opened or read."""
    return UserError(f"{path}: {_REASONS.get(type(error), f'cannot be read ({error.strerror or error})')}")


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Yield the lines of a binary stream as it delivers them; name stands for it in messages.

    Raises:
        UserError: a line is not UTF-8.
    """
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line:
                continue
        line = line.removesuffix(b"\r\n") if line.endswith(b"\r\n") else line.removesuffix(b"\n")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
            remedy = "convert it, for example with iconv -f LATIN1 -t UTF-8"
            raise UserError(f"{name}, line {number}: not valid UTF-8 ({byte}); {remedy}") from error


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Writes a file that read_lines reads, in place of what is there."""
    Path(path).write_bytes(encode_lines(lines, path))


def encode_lines(lines: Iterable[str], path: str | os.PathLike[str] = "") -> bytes:
    r"""Each line as UTF-8 with "\n" behind it, whatever the system's line ends are; gzip where the path ends in .gz.

    What several calls return, one after the other, is a sound file at each point: gzip reads its members as one text.
    The same lines always give the same bytes.
    """
    content = "".join(f"{line}\n" for line in lines).encode("utf-8")
    return gzip.compress(content, mtime=0) if is_gzip(path) else content


def is_gzip(path: str | os.PathLike[str]) -> bool:
    """Whether a file of this name is read and written as gzip."""
    return Path(path).suffix.lower() == ".gz"


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of at most `size` items, in order, each as soon as it is full."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    if not is_gzip(path):
        return path.open("rb")
    if path.is_file() and not path.stat().st_size:
        raise EOFError("it has no bytes at all")  # which the gzip module would take for an empty text
    return gzip.open(path, "rb")
