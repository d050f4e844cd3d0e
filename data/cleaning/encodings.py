"""Lines of text in whatever compression and encoding they have, each decoded as what it is.

Lines end at "\\n", as in text_files.py. A file in UTF-16 or UTF-32 is known by its byte-order mark or its zeros. In any
other file, text is UTF-8, and bytes that are not valid there are in the encoding that Windows used for the language of
the file before Unicode, even if the encoding changes within a line.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ftfy.bad_codecs  # noqa: F401, registers encodings that have a character for every byte

from lingua_flax.data.text_files import unreadable
from lingua_flax.host.errors import UserError

TOLD_EVERY = 1000  # lines
_WIDE = {  # the beginnings of files in encodings that do not extend ASCII
    "utf-32": re.compile(b"|".join(map(re.escape, (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)))),
    "utf-16": re.compile(b"|".join(map(re.escape, (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)))),
    "utf-16-le": re.compile(rb"(?:[^\0]\0){4}"),
    "utf-16-be": re.compile(rb"(?:\0[^\0]){4}"),
}
_DEFAULT_PAGE = "sloppy-windows-1252"
_CODE_PAGES = {
    "sloppy-windows-1250": "cs pl sk hu sl hr bs ro sq",
    "sloppy-windows-1251": "ru uk bg sr mk be",
    "sloppy-windows-1253": "el",
    "sloppy-windows-1254": "tr az",
    "sloppy-windows-1255": "he",
    "sloppy-windows-1256": "ar fa ur",
    "sloppy-windows-1257": "lt lv et",
    "sloppy-windows-1258": "vi",
    "sloppy-windows-874": "th",
    "gb18030": "zh",
    "cp932": "ja",
    "cp949": "ko",
}
_OF_SEVERAL_BYTES = ("gb18030", "cp932", "cp949")


class Line(NamedTuple):
    """A line of a file.

    Attributes:
      number: counted from 1.
      garbled: what the line looks like in UTF-8, if it is in another encoding; otherwise "".
    """

    number: int
    text: str
    garbled: str = ""


def code_page(languages: Iterable[str]) -> str:
    """Returns the encoding that Windows used for these languages, such as one of them and English."""
    codes = {re.split("[-_]", language.lower())[0] for language in languages}
    return next((page for page, known in _CODE_PAGES.items() if codes & set(known.split())), _DEFAULT_PAGE)


def read_lines(path: Path, encoding: str, advance: Callable[[int], object] = lambda size: None) -> Iterator[Line]:
    """Yields the lines of a file, which may be compressed with gzip, bzip2, xz or zstandard.

    Bytes that are not valid UTF-8 are in the given encoding. `advance` is told how many bytes of the file have been
    read since it was last called. Raises UserError if the file cannot be read, or is damaged.
    """
    told = 0
    try:
        with path.open("rb") as file:
            for line in _decoded(io.BufferedReader(_decompressed(file, path)), encoding):
                yield line
                if line.number % TOLD_EVERY == 0:
                    advance(file.tell() - told)
                    told = file.tell()
        advance(path.stat().st_size - told)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"{path}: truncated or damaged ({error}); fetch or compress it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _decompressed(file: BinaryIO, path: Path) -> Any:
    beginning = file.read(6)
    file.seek(0)
    if beginning.startswith(b"\x1f\x8b"):
        return gzip.open(file)
    if beginning.startswith(b"BZh"):
        return bz2.open(file)
    if beginning.startswith(b"\xfd7zXZ\0"):
        return lzma.open(file)
    if beginning.startswith(b"(\xb5/\xfd"):
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    if beginning.startswith(b"PK\3\4"):
        raise UserError(f"{path}: an archive or a spreadsheet; unpack it, or save the sheet as CSV")
    return file


def _decoded(stream: io.BufferedReader, encoding: str) -> Iterator[Line]:
    wide = next((name for name, beginning in _WIDE.items() if beginning.match(stream.peek(8))), None)
    if wide:
        for number, text in enumerate(io.TextIOWrapper(stream, wide, "replace", newline="\n"), start=1):
            yield Line(number, _without_end(text, "\r\n", "\n"), f"({wide})")
        return
    decode = _decoder(encoding)
    for number, line in enumerate(stream, start=1):
        line = _without_end(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, b"\r\n", b"\n")
        try:
            yield Line(number, line.decode())
        except UnicodeDecodeError:
            yield Line(number, decode(line), line.decode("utf-8", "replace"))


def _decoder(encoding: str) -> Callable[[bytes], str]:
    """Returns what decodes a line that is not valid UTF-8."""
    if encoding in _OF_SEVERAL_BYTES:  # whose characters may contain valid UTF-8
        return lambda line: line.decode(encoding, "replace")

    def decode_invalid(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        return error.object[error.start : error.end].decode(encoding, "replace"), error.end

    codecs.register_error(f"as {encoding}", decode_invalid)
    return lambda line: line.decode("utf-8", f"as {encoding}")


def _without_end(line: Any, long: Any, short: Any) -> Any:
    return line.removesuffix(long) if line.endswith(long) else line.removesuffix(short)
