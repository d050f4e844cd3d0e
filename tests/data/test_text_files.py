"""Reading and writing lines of text, and errors in files that are not text."""

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.text_files import decode_lines, encode_lines, read_lines, write_lines
from lingua_flax.host.errors import UserError
from tests.helpers.texts import LINES


def test_only_newlines_end_lines(tmp_path):
    for content, expected in (
        (b"", []),
        (b"\n", [""]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb", ["a\r", "b"]),
        (b"a\rb\nc\r", ["a\rb", "c\r"]),
        (" a\u2028b\x0bc\x0cd\x85e\x1cf\0 \t\n".encode(), [" a\u2028b\x0bc\x0cd\x85e\x1cf\0 \t"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
    ):
        plain, packed = tmp_path / "text", tmp_path / "text.gz"
        plain.write_bytes(content)
        packed.write_bytes(gzip.compress(content))
        assert list(read_lines(plain)) == expected
        assert list(read_lines(packed)) == expected
        assert list(decode_lines(io.BytesIO(content), "standard input")) == expected


@given(st.lists(LINES.map(lambda line: line.replace("\r", "").replace("\ufeff", ""))), st.booleans(), st.booleans())
def test_any_lines_are_read_back(lines, with_mark, with_crlf):
    """With and without a byte-order mark, Windows line endings, and a line ending after the last line."""
    text = "".join(f"{line}\r\n" if with_crlf else f"{line}\n" for line in lines)
    for content in (text, text[:-1] if lines and lines[-1] and not with_crlf else text):
        encoded = (("\ufeff" if with_mark else "") + content).encode()
        assert list(decode_lines(io.BytesIO(encoded), "a text")) == lines


def test_lines_are_yielded_before_the_stream_ends():
    def stream() -> Iterator[bytes]:
        yield b"first\n"
        raise AssertionError("read ahead")

    assert next(decode_lines(stream(), "a terminal")) == "first"


def test_written_lines_can_be_read(tmp_path):
    """Files are compressed if their name ends in .gz, and their bytes depend on the lines only."""
    lines = ["a", "", "é\u2028 b", "c"]
    plain = "".join(f"{line}\n" for line in lines).encode()
    for name, content in (("text", plain), ("a.gz", gzip.compress(plain, mtime=0)), ("A.GZ", None)):
        write_lines(tmp_path / name, lines)
        assert list(read_lines(tmp_path / name)) == lines
        assert content in (None, (tmp_path / name).read_bytes())
    streamed = tmp_path / "streamed.gz"
    streamed.write_bytes(encode_lines(lines[:3], streamed) + encode_lines(lines[3:], streamed))
    assert list(read_lines(streamed)) == lines
    write_lines(tmp_path / "empty.gz", [])
    assert list(read_lines(tmp_path / "empty.gz")) == []


# Errors.


def test_error_for_invalid_utf8_names_file_and_line(tmp_path):
    path = tmp_path / "latin1.txt"
    path.write_bytes("eins\nzwei\nd\xe9j\xe0\n".encode("latin1"))
    lines = read_lines(path)
    assert [next(lines), next(lines)] == ["eins", "zwei"]
    with pytest.raises(UserError, match=r"latin1\.txt, line 3: not valid UTF-8 \(byte 0xe9 at position 2\).*iconv"):
        next(lines)
    for content in (b"\xff\xf0a\0", b"\xed\xa0\x80\n"):  # and a surrogate
        with pytest.raises(UserError, match=r"^standard input, line 1: not valid UTF-8"):
            list(decode_lines(io.BytesIO(content), "standard input"))


def test_what_is_not_utf_8_text_is_named(tmp_path):
    """Rather than advising a conversion that would destroy it."""
    for name, content, words in (
        ("a.txt", gzip.compress(b"eins\n", mtime=0), "compressed with gzip; its name must end in .gz"),
        ("a.txt.xz", lzma.compress(b"eins\n"), "compressed with xz"),
        ("a.txt.bz2", bz2.compress(b"eins\n"), "compressed with bzip2"),
        ("a.txt.zst", bytes.fromhex("28b52ffd200529000065696e730a"), "compressed with zstd"),
        ("utf16.txt", "d\u00e9j\u00e0\n".encode("utf-16"), "probably UTF-16"),
        ("utf16be.txt", "deja\n".encode("utf-16-be"), "probably UTF-16"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"^{path}: .*{re.escape(words)}"):
            list(read_lines(path))


def test_error_for_damaged_gzip_names_the_file(tmp_path):
    content = gzip.compress("".join(f"line {number}\n" for number in range(2000)).encode())
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
    for damaged in (content[:middle], b"", b"plain text\n", flipped, content[:-4]):
        (tmp_path / "text.gz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"text\.gz: truncated or damaged"):
            list(read_lines(tmp_path / "text.gz"))


def test_errors_for_files_that_cannot_be_opened(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    errors = {"missing.gz": "no such file", "folder": "a folder, not a file", "file/text": "cannot be read (Not a dir"}
    for name, words in errors.items():
        with pytest.raises(UserError, match=f"{name}: {re.escape(words)}"):
            list(read_lines(tmp_path / name))
