r"""Reading and writing lines of text, in the same way for corpora, input to translate and references to score against.

A line ends at "\n" and nowhere else, so that line numbers agree with wc, sed and other toolkits: U+2028, "\v", "\f",
U+0085 and a lone "\r" are part of the text. In files with Windows line ends, one "\r" before each "\n" is dropped. A
byte-order mark at the start of a file is dropped too. The last line does not need a "\n"; an empty file has no lines.
"""

import codecs
import contextlib
import gzip
import itertools
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted

T = TypeVar("T")

_UTF_16 = re.compile(rb"(?:[^\0]\0){4}|(?:\0[^\0]){4}")  # four ASCII characters
# How compressed files begin, and what to do with them.
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "its name must end in .gz"),
    b"\xfd7zXZ\0": ("xz", "decompress it with xz -d"),
    b"(\xb5/\xfd": ("zstd", "decompress it with zstd -d"),
    b"BZh": ("bzip2", "decompress it with bzip2 -d"),
    b"PK\3\4": ("zip", "decompress it with unzip, or export it as text if it is a document or a sheet"),
    b"7z\xbc\xaf": ("7-Zip", "decompress it with 7z x"),
}
_DAMAGED: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
_REASONS = {
    FileNotFoundError: "no such file; check the path",
    IsADirectoryError: "a folder, not a file; give the path of a file in it",
    PermissionError: "permission denied; check its permissions",
}


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, which is gzipped if its name ends in .gz, one at a time.

    Raises UserError if the file cannot be read, is truncated or damaged, or is not UTF-8.
    """
    path = Path(path)
    with unreadable_as_user_error(path), open_binary(path) as stream:
        yield from decode_lines(stream, str(path))


@contextlib.contextmanager
def unreadable_as_user_error(path: Path, *damaged: type[Exception]) -> Iterator[None]:
    """Raises UserError if the file cannot be read, or is a damaged compressed file; `damaged` also tells of one."""
    try:
        yield
    except _DAMAGED + damaged as error:
        raise UserError(f"{path}: truncated or damaged ({error}); fetch or compress it again") from error
    except OSError as error:
        reason = _REASONS.get(type(error), f"cannot be read ({error.strerror or error})")
        raise UserError(f"{path}: {reason}") from error


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yields the lines of a binary stream as they arrive; raises UserError, with its name, if one is not UTF-8."""
    for number, line in enumerate(stream, start=1):
        if number == 1:
            check_not_compressed(line, name)
            if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _UTF_16.match(line):
                remedy = "convert it with iconv -f UTF-16 -t UTF-8, and mind its byte order if it has no mark"
                raise UserError(f"{name}: not UTF-8, but probably UTF-16; {remedy}")
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line:
                continue
        line = line.removesuffix(b"\r\n") if line.endswith(b"\r\n") else line.removesuffix(b"\n")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
            remedy = "if all of it has another encoding, convert it with iconv -f ENCODING -t UTF-8; if only some lines"
            remedy += " have, iconv would garble the others, but lingua-flax clean mends parallel text"
            raise UserError(f"{name}, line {number}: not valid UTF-8 ({byte}); {remedy}") from error


def check_not_compressed(beginning: bytes, name: str) -> None:
    """Raises UserError if a file that begins in this way is compressed."""
    for mark, (format_, remedy) in _COMPRESSED.items():
        if beginning.startswith(mark):
            raise UserError(f"{name}: not text, but compressed with {format_}; {remedy}")


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Writes a file for read_lines, replacing an existing one."""
    Path(path).write_bytes(encode_lines(lines, path))


def encode_lines(lines: Iterable[str], path: str | os.PathLike[str] = "") -> bytes:
    r"""Returns lines as UTF-8, each ended by "\n", gzipped if the path ends in .gz; always the same bytes.

    The concatenated results of several calls are a valid file at every point: gzip reads its members as one text.
    """
    content = "".join(f"{line}\n" for line in lines).encode("utf-8")
    return gzip.compress(content, mtime=0) if is_gzip(path) else content


def check_aligned(name: object, lines: Sequence[str], other_name: object, others: Sequence[str]) -> None:
    """Raises UserError unless two files have the same number of lines."""
    if len(lines) != len(others):
        counts = f"{name} has {counted(len(lines), 'line')}, but {other_name} has {len(others):,}"
        raise UserError(f"{counts}; they must be aligned")


def is_gzip(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file of this name is read and written as gzip."""
    return Path(path).suffix.lower() == ".gz"


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of at most `size` items, in order, each as soon as it is full."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def open_binary(path: Path) -> BinaryIO | gzip.GzipFile:
    """Opens a file, which is gzipped if its name ends in .gz; raises OSError or EOFError if that is not possible."""
    if not is_gzip(path):
        return path.open("rb")
    if path.is_file() and not path.stat().st_size:
        raise EOFError("it is empty")  # the gzip module would read it as an empty text
    return gzip.open(path, "rb")
