"""Reading and writing lines of text, and errors in files that are not text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from lingua_flax.data.text_files import decode_lines, encode_lines, read_lines, write_lines
from lingua_flax.host.errors import UserError


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb", ["a\r", "b"]),
        (b"a\rb\nc\r", ["a\rb", "c\r"]),
        (b" a \t\n", [" a \t"]),
        ("a\u2028b\x0bc\x0cd\x85e\x1cf\n".encode(), ["a\u2028b\x0bc\x0cd\x85e\x1cf"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"nul\0byte\n", ["nul\0byte"]),
    ],
)
def test_only_newlines_end_lines(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    plain, packed = tmp_path / "text", tmp_path / "text.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert list(read_lines(plain)) == expected
    assert list(read_lines(packed)) == expected
    assert list(decode_lines(io.BytesIO(content), "standard input")) == expected


def test_gzip_members_are_concatenated(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\n"))
    assert list(read_lines(str(path))) == ["a", "bc"]


def test_lines_are_yielded_before_the_stream_ends() -> None:
    def stream() -> Iterator[bytes]:
        yield b"first\n"
        raise AssertionError("read ahead")

    assert next(decode_lines(stream(), "a terminal")) == "first"


def test_file_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for number in range(50_000):
            stream.write(b"%09d %s\n" % (number, b"x" * 50))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(path)) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_error_for_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes("eins\nzwei\nd\xe9j\xe0\n".encode("latin1"))
    lines = read_lines(path)
    assert [next(lines), next(lines)] == ["eins", "zwei"]
    with pytest.raises(UserError, match=r"latin1\.txt, line 3: not valid UTF-8 \(byte 0xe9 at position 2\).*iconv"):
        next(lines)
    with pytest.raises(UserError, match=r"^standard input, line 1: not valid UTF-8"):
        list(decode_lines(io.BytesIO(b"\xff\xf0a\0"), "standard input"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", gzip.compress(b"eins\n", mtime=0), "compressed with gzip; its name must end in .gz"),
        ("a.txt.xz", lzma.compress(b"eins\n"), "compressed with xz"),
        ("a.txt.bz2", bz2.compress(b"eins\n"), "compressed with bzip2"),
        ("a.txt.zst", bytes.fromhex("28b52ffd200529000065696e730a"), "compressed with zstd"),
        ("a.gz", gzip.compress(lzma.compress(b"eins\n"), mtime=0), "compressed with xz"),
        ("utf16.txt", "d\u00e9j\u00e0\n".encode("utf-16"), "probably UTF-16"),
        ("utf16be.txt", "deja\n".encode("utf-16-be"), "probably UTF-16"),
        ("utf16.txt.gz", gzip.compress("eins\n".encode("utf-16-le"), mtime=0), "probably UTF-16"),
    ],
)
def test_what_is_not_utf_8_text_is_named(tmp_path, name, content, words):
    """Rather than advising a conversion that would destroy it."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(words)) as error:
        list(read_lines(path))
    assert str(error.value).startswith(f"{path}: ")


def test_surrogates_are_invalid_utf8(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n\xed\xa0\x80\n")
    with pytest.raises(UserError, match="line 2: not valid UTF-8"):
        list(read_lines(path))


@pytest.mark.parametrize("damage", ["half", "no bytes", "not gzip", "flipped", "tail"])
def test_error_for_damaged_gzip_names_the_file(tmp_path: Path, damage: str) -> None:
    content = gzip.compress("".join(f"line {number}\n" for number in range(2000)).encode())
    middle = len(content) // 2
    path = tmp_path / "text.gz"
    path.write_bytes(
        {
            "half": content[:middle],
            "no bytes": b"",
            "not gzip": b"plain text\n",
            "flipped": content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :],
            "tail": content[:-4],
        }[damage]
    )
    with pytest.raises(UserError, match=r"text\.gz: truncated or damaged"):
        list(read_lines(path))


def test_written_lines_can_be_read(tmp_path: Path) -> None:
    """Files are compressed if their name ends in .gz, and their bytes depend on the lines only."""
    lines = ["a", "", "é\u2028 b", "c"]
    plain = "".join(f"{line}\n" for line in lines).encode()
    for name in ("text", "text.gz", "TEXT.GZ"):
        write_lines(tmp_path / name, lines)
        assert list(read_lines(tmp_path / name)) == lines
    assert (tmp_path / "text").read_bytes() == plain
    assert gzip.decompress((tmp_path / "text.gz").read_bytes()) == plain
    assert (tmp_path / "text.gz").read_bytes() == (tmp_path / "TEXT.GZ").read_bytes() == gzip.compress(plain, mtime=0)
    streamed = tmp_path / "streamed.gz"
    streamed.write_bytes(encode_lines(lines[:3], streamed) + encode_lines(lines[3:], streamed))
    assert list(read_lines(streamed)) == lines
    write_lines(tmp_path / "empty.gz", [])
    assert list(read_lines(tmp_path / "empty.gz")) == []


def test_errors_for_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for name in ("missing.txt", "missing.gz"):
        with pytest.raises(UserError, match=f"{name}: no such file"):
            list(read_lines(tmp_path / name))
    for name in ("folder", "folder.gz"):
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=f"{name}: a folder, not a file"):
            list(read_lines(tmp_path / name))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be read \(Not a directory\)"):
        list(read_lines(tmp_path / "file" / "text"))


def test_error_for_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("a\n")
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        with pytest.raises(UserError, match="secret: permission denied; check its permissions"):
            list(read_lines(path))
    else:
        pytest.skip("this user may read every file")
