"""Lines of text in whatever compression and encoding they have, each decoded as what it is.

A file in UTF-16 or UTF-32 is known by its byte-order mark or its zeros, one in XML says what it is in. In any other
file, a line is in UTF-8, perhaps damaged, or else in the encoding that Windows used for the language of the file before
Unicode.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ftfy.bad_codecs  # noqa: F401, registers code pages that have a character for every byte

from lingua_flax.data.text_files import check_not_compressed, unreadable_as_user_error
from lingua_flax.host.errors import UserError
from lingua_flax.options.language_codes import language_code

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TOLD_EVERY = 1000  # lines
BUFFER = 1 << 20  # bytes that are read at once; the first ones tell what lines in UTF-8 are like
_OPENERS: dict[bytes, Callable[[Any], Any]] = {  # by how a file begins
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"(\xb5/\xfd": zstd.open,
}
_WIDE = {  # by how the text begins; UTF-32 before UTF-16, whose mark it contains
    "utf-32": re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff"),
    "utf-16": re.compile(rb"\xff\xfe|\xfe\xff"),
    "utf-16-le": re.compile(rb"(?:[^\0]\0){4}"),
    "utf-16-be": re.compile(rb"(?:\0[^\0]){4}"),
}
_DECLARED = re.compile(rb"\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
_BINARY = re.compile(rb"[\0-\x08\x0e-\x19\x1c-\x1f]")  # without ^Z and Esc, by which text ends or changes its encoding
_MAX_BINARY = 0.02  # share of such bytes in a text that is damaged; of compressed data, a tenth
_CODE_PAGES = {
    "sloppy-windows-1250": "cs pl sk hu sl hr bs ro sq",
    "sloppy-windows-1251": "ru uk bg sr mk be",
    "sloppy-windows-1253": "el",
    "sloppy-windows-1254": "tr az",
    "sloppy-windows-1255": "he",
    "sloppy-windows-1256": "ar fa ur",
    "sloppy-windows-1257": "lt lv et",
    "sloppy-windows-1258": "vi",
    "cp874": "th",
    "gb18030": "zh",
    "cp932": "ja",
    "cp949": "ko",
}


class Line(NamedTuple):
    """A line of a file, counted from 1; `garbled` is what it looks like in UTF-8, if it is in another encoding."""

    number: int
    text: str
    garbled: str = ""


def code_page(languages: Iterable[str]) -> str:
    """Returns the encoding that Windows used for these languages, such as one of them and English."""
    codes = set(map(language_code, languages))
    return next((page for page, known in _CODE_PAGES.items() if codes & set(known.split())), "sloppy-windows-1252")


def read_lines(path: Path, encoding: str, advance: Callable[[int], object] = lambda size: None) -> Iterator[Line]:
    """Yields the lines of a file, which may be compressed with gzip, bzip2, xz or zstandard.

    Those that are not UTF-8 are in the given encoding. `advance` is told how many more bytes have been read. Raises
    UserError if the file cannot be read, or is damaged.
    """
    told = 0
    with unreadable_as_user_error(path, zstd.ZstdError), path.open("rb") as file:
        opener = next((each for mark, each in _OPENERS.items() if file.peek(6).startswith(mark)), None)
        stream = io.BufferedReader(opener(file) if opener else file, BUFFER)
        for line in _decoded(stream, encoding, str(path)):
            yield line
            if line.number % TOLD_EVERY == 0 and file.seekable():  # a pipe has no size either
                advance(file.tell() - told)
                told = file.tell()
        advance(path.stat().st_size - told)


def _decoded(stream: io.BufferedReader, encoding: str, name: str) -> Iterator[Line]:
    beginning = stream.peek()
    wide = next((each for each, known in _WIDE.items() if known.match(beginning)), "")
    if not wide:
        _check_text(beginning, name)
    if of_all := wide or _declared_encoding(beginning, name):
        for number, text in enumerate(io.TextIOWrapper(stream, of_all, "replace", newline="\n"), start=1):
            yield Line(number, text.removesuffix("\n").removesuffix("\r"), wide and f"({wide})")
        return
    lines = [line for line in beginning.split(b"\n") if not line.isascii()]
    valid = [line for line in lines if "\ufffd" not in line.decode("utf-8", "replace")]
    known = bytes(set().union(*valid)) if 2 * len(valid) >= len(lines) else b""
    for number, line in enumerate(stream, start=1):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        yield Line(number, *_decode(line.removesuffix(b"\n").removesuffix(b"\r"), encoding, known))


def _decode(line: bytes, encoding: str, known: bytes) -> tuple[str, str]:
    """Returns the text of a line, with U+FFFD if it is damaged, and what it looks like in UTF-8 if it is not that.

    A line of UTF-8 that lost a byte, or was cut inside a character, would become other letters in a code page. Most of
    its characters are whole, or else it has only a part of one, in bytes that are `known` from lines in UTF-8.
    """
    try:
        return line.decode(), ""
    except UnicodeDecodeError:
        text, characters = line.decode("utf-8", "replace"), line.decode("utf-8", "surrogateescape")
    lost = bytes(ord(character) & 0xFF for character in characters if "\udc80" <= character <= "\udcff")
    whole = len(characters) - len(lost) - sum(map(str.isascii, characters))
    is_damaged = whole > 2 * len(lost) or (len(lost) < 4 and not lost.translate(None, known))
    return (text, "") if is_damaged else (line.decode(encoding, "replace"), text)


def _check_text(beginning: bytes, name: str) -> None:
    check_not_compressed(beginning, name)
    if beginning.startswith(b"%PDF-") or len(_BINARY.findall(beginning)) > _MAX_BINARY * len(beginning) + 1:
        remedy = "export it as text, or convert it with iconv -f UTF-16LE -t UTF-8 if that is its encoding"
        raise UserError(f"{name}: not text; {remedy}")


def _declared_encoding(beginning: bytes, name: str) -> str:
    """Returns what an XML file says that it is in; "" if it does not, or says UTF-8, or what it cannot be."""
    found = _DECLARED.match(beginning)
    declared = found[1].decode() if found else "utf-8"
    try:
        io.TextIOWrapper(io.BytesIO(), declared)
    except LookupError as error:
        remedy = "convert it to UTF-8, and name that in its first line"
        raise UserError(f'{name}: unknown encoding "{declared}"; {remedy}') from error
    return "" if declared.lower().startswith("utf") else declared
