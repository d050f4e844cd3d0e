"""Prepared corpora in the cache folder: what is prepared again, full disks, damage, and several processes at once."""

import signal
import threading
import time
import tracemalloc
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingua_flax.data.corpora import Pair, prepared_corpus
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.errors import RunError, UserError
from tests.conftest import HUNG_AFTER
from tests.helpers.pairs import numbered

KEY = "0" * 64


def prepared(cache: Path) -> list[Path]:
    """Returns everything in the cache folder: complete corpora, and anything that should not be there."""
    return sorted(cache.glob("*/*"))


def test_corpus_is_prepared_once(files, monkeypatch):
    """Unless the format changes."""
    lines = numbered(100)
    first = files.open(train_source=lines, train_target=lines)
    (folder,) = prepared(files.cache)
    stamp = folder.stat().st_mtime_ns
    again = files.open(train_source=files.write("moved.en", lines), train_target=files.write("moved.de", lines))
    assert folder.stat().st_mtime_ns == stamp
    assert (again.digest, again.notes) == (first.digest, first.notes)
    assert list(again.split("train")) == list(first.split("train"))
    monkeypatch.setattr(prepared_corpus, "_FORMAT", 1)
    files.open(train_source=lines, train_target=lines)
    assert len(prepared(files.cache)) == 2


def test_changed_input_is_prepared_again(files):
    """The digest covers only languages and training pairs, so that checkpoints remain valid otherwise."""
    given = {"train_source": numbered(100), "train_target": numbered(100, "Zeile")}
    one, two, three = (files.write(f"{name}.tsv", [f"a\t{name}"]) for name in ("one", "two", "three"))
    digests = [
        files.open(**given | options).digest
        for options in (
            {},
            {"train_target": [*numbered(99, "Zeile"), "Zeile 1OO"]},
            {"train_source": numbered(100)[::-1], "train_target": numbered(100, "Zeile")[::-1]},
            {"source_language": "de"},
            {"target_language": "de"},
            {"validation_source": one},
            {"test_source": one},  # the same sentences are held out, for test or for validation
            {"validation_source": one, "test_source": two},
            {"validation_source": one, "test_source": three},
        )
    ]
    assert len(prepared(files.cache)) == 9
    assert len(set(digests[:6])) == 6
    assert digests[5] == digests[6]
    assert digests[7] == digests[8]


def test_digest_depends_on_sentence_boundaries(files):
    pairs = ["ab\tc\nd\te\n", "a\tbc\nd\te\n", "abd\tc\n \te\n", "a\tc\nbd\te\n"]
    tables = [files.write(f"{number}.tsv", text) for number, text in enumerate(pairs)]
    assert len({files.open(train_source=table).digest for table in tables}) == len(pairs)


def test_default_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory(Path("~/mine")) == tmp_path / "mine"
    default = tmp_path / ".cache"
    for variable, folder in ((str(tmp_path / "xdg"), tmp_path / "xdg"), ("", default), ("relative", default)):
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
        assert cache_directory(None) == folder / "lingua-flax"


def test_unwritable_cache_is_reported(files):
    files.write("file", "")
    for place in ("file", "file/below", "/proc/lingua-flax"):
        files.cache = files.folder / place
        with pytest.raises(UserError, match=rf"{place}.*cannot be written.*--data\.cache-directory"):
            files.open(train_source=["a"], train_target=["b"])


def test_error_for_damaged_cache_says_what_to_delete(files):
    """Whether a pair is read by its number, which is not compared with the SHA-256, or all of them."""
    options = {"train_source": numbered(1000), "train_target": numbered(1000)}
    files.open(**options)
    (folder,) = prepared(files.cache)
    text, contents = folder / "train.source.values", folder / "corpus.json"
    sound = text.read_bytes()
    for path, content, read in (
        (text, sound[:-1], list),
        (text, sound.replace(b"line", b"Line", 1), list),
        (text, sound.replace(b"line", b"\xffine", 1), lambda pairs: pairs[0]),
        (contents, b"{", list),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{folder}: this prepared corpus is damaged .*delete the folder"):
            read(files.open(**options).split("train"))


# Full disks.


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("file", "count"), [("train.source.values", 1), ("train.target.ends", 100_000)])
def test_full_disk_is_reported(cache, file, count):
    """Writing to /dev/full fails as on a full disk: at once, or when a buffer is written at the end."""

    def write(folder: Path) -> None:
        (folder / file).symlink_to("/dev/full")
        with prepared_corpus.SplitWriter(folder, "train") as writer:
            writer.write([Pair("x", "y")] * count)

    with pytest.raises(RunError, match=r"the disk is full.*--data\.cache-directory"):
        prepared_corpus.cached_folder(cache, "any", KEY, write)
    assert prepared(cache) == []


# Several threads and processes.


def test_waiting_threads_use_what_another_prepared_or_take_over_if_it_fails(cache):
    started, release = threading.Event(), threading.Event()
    written = []

    def write(folder: Path) -> None:
        written.append(folder)
        if len(written) == 1:
            (folder / "leftover").touch()
            started.set()
            assert release.wait(HUNG_AFTER)
            raise ValueError("on purpose")
        (folder / "file").touch()

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(prepared_corpus.cached_folder, cache, "any", KEY, write)
        assert started.wait(HUNG_AFTER)
        others = [pool.submit(prepared_corpus.cached_folder, cache, "any", KEY, write) for _ in range(2)]
        time.sleep(0.2)  # so that they wait for the first
        release.set()
    with pytest.raises(ValueError, match="on purpose"):
        first.result()
    assert len(written) == 2
    (folder,) = prepared(cache)
    assert [other.result() for other in others] == [folder] * 2
    assert [path.name for path in folder.iterdir()] == ["file"]


KILLED = f"""
import os, pathlib, signal, sys
from lingua_flax.data.corpora import prepared_corpus

def write(folder):
    (folder / "leftover" / "deep").mkdir(parents=True)
    os.kill(os.getpid(), signal.SIGKILL)

prepared_corpus.cached_folder(pathlib.Path(sys.argv[1]), "any", "{KEY}", write)
"""


def test_remains_of_a_killed_process_are_removed(cache, run):
    assert run("-c", KILLED, cache).returncode == -signal.SIGKILL
    assert [path.name for path in prepared(cache)] == ["0" * 16 + ".incomplete", "0" * 16 + ".lock"]
    folder = prepared_corpus.cached_folder(cache, "any", KEY, lambda folder: (folder / "file").touch())
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert prepared(cache) == [folder]


def test_memory_use_does_not_grow_with_the_corpus(files):
    """Preparing and reading 21,000 pairs takes no more memory than 9,000; held, they would take 4 MB more."""
    peaks = []
    for count in (10, 9_000, 21_000):
        lines = [f"source {number} {'x' * 60}\ttarget {number} {'y' * 60}" for number in range(count)]
        path = files.write(f"{count}.tsv.gz", lines)
        del lines
        tracemalloc.start()
        deque(files.open(train_source=path).split("train"), 0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 1e6, peaks
