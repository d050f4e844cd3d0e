"""Prepared corpora in the cache folder: what is prepared again, full disks, damage, and several processes at once."""

import functools
import resource
import signal
import threading
import time
import tracemalloc
from collections import deque
from pathlib import Path
from typing import Any

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
    assert (again.fingerprint, again.notes) == (first.fingerprint, first.notes)
    assert list(again.split("train")) == list(first.split("train"))
    monkeypatch.setattr(prepared_corpus, "_FORMAT", 1)
    files.open(train_source=lines, train_target=lines)
    assert len(prepared(files.cache)) == 2


def test_changed_input_is_prepared_again(files):
    """The fingerprint covers only languages and training pairs, so that checkpoints remain valid otherwise."""
    given: dict[str, Any] = {"train_source": numbered(100), "train_target": numbered(100, "Zeile")}
    one = files.write("one.tsv", ["a\tb"])
    others = [
        {"train_target": [*numbered(99, "Zeile"), "Zeile 1OO"]},
        {"train_source": numbered(100)[::-1], "train_target": numbered(100, "Zeile")[::-1]},
        {"source_language": "de"},
        {"target_language": "de"},
        {"validation_source": one},
    ]
    fingerprints = [files.open(**given | other).fingerprint for other in [{}, *others]]
    assert len(set(fingerprints)) == len(prepared(files.cache)) == 6
    tested = files.open(**given, test_source=one)
    assert tested.fingerprint == fingerprints[-1]  # the same sentences are held out, for test or for validation
    splits = {"validation_source": one, "test_source": files.write("two.tsv", ["x\ty"])}
    changed = files.open(**given, **splits | {"test_source": files.write("z.tsv", ["x\tz"])})
    assert changed.fingerprint == files.open(**given, **splits).fingerprint
    assert list(changed.split("test")) == [("x", "z")]
    assert len(prepared(files.cache)) == 9


def test_fingerprint_depends_on_sentence_boundaries(files):
    pairs = ["ab\tc\nd\te\n", "a\tbc\nd\te\n", "abd\tc\n \te\n", "a\tc\nbd\te\n"]
    tables = [files.write(f"{number}.tsv", text) for number, text in enumerate(pairs)]
    assert len({files.open(train_source=table).fingerprint for table in tables}) == len(pairs)


def test_default_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory(None) == tmp_path / "xdg" / "lingua-flax"
    assert cache_directory(Path("~/mine")) == tmp_path / "mine"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory(None) == tmp_path / ".cache" / "lingua-flax"


def test_unwritable_cache_is_reported(files):
    files.write("file", "")
    for place in ("file", "file/below", "/proc/lingua-flax"):
        files.cache = files.folder / place
        with pytest.raises(UserError, match=rf"{place}.*cannot be written.*--data\.cache-directory"):
            files.open(train_source=["a"], train_target=["b"])


def test_error_for_damaged_cache_says_what_to_delete(files):
    options = {"train_source": numbered(1000), "train_target": numbered(1000)}
    files.open(**options)
    (folder,) = prepared(files.cache)
    text, contents = folder / "train.source.values", folder / "corpus.json"
    sound = text.read_bytes()
    shorter = (folder / "test.source.values").read_bytes()

    def read() -> list[Pair]:
        train = files.open(**options).split("train")
        return [train[0], *train]

    damages = [(text, sound[:-1]), (text, shorter), (text, sound.replace(b"line", b"Line", 1))]
    damages += [(text, sound.replace(b"line", b"\xffine", 1)), (contents, b"{")]
    for path, content in damages:
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{folder}: this prepared corpus is damaged .*delete the folder"):
            read()


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
        prepared_corpus.prepare(cache, "any", KEY, write)
    assert prepared(cache) == []


def test_disk_that_fills_up_during_writing_is_reported(cache):
    """A limit on the size of files stands in for the full disk; errors of NumPy's own writes would not say why."""

    def write(folder: Path) -> None:
        with prepared_corpus.SplitWriter(folder, "train") as writer:
            for _ in range(100):
                writer.write([Pair("x" * 100, "y")] * 100)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(RunError, match="the disk is full"):
            prepared_corpus.prepare(cache, "any", KEY, write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert prepared(cache) == []


# Several threads and processes.


def write_text(text: str, folder: Path) -> None:
    (folder / "file").write_text(text)


def test_waiting_threads_use_what_another_prepared_or_take_over_if_it_fails(cache):
    started, release = threading.Event(), threading.Event()
    written: list[str] = []
    results: list[str] = []

    def prepare(name: str) -> None:
        def write(folder: Path) -> None:
            written.append(name)
            if name == "first":
                (folder / "leftover").touch()
                started.set()
                assert release.wait(HUNG_AFTER)
                raise ValueError("on purpose")
            write_text(name, folder)

        try:
            folder = prepared_corpus.prepare(cache, "any", KEY, write)
            results.append((folder / "file").read_text())
        except ValueError:
            results.append("failed")

    threads = [threading.Thread(target=prepare, args=(name,)) for name in ("first", "second", "third")]
    for thread in threads:
        thread.start()
        assert started.wait(HUNG_AFTER)
    time.sleep(0.2)  # so that the others wait for the first
    release.set()
    for thread in threads:
        thread.join(HUNG_AFTER)
    assert len(written) == 2
    assert sorted(results) == sorted(["failed", written[1], written[1]])
    (folder,) = prepared(cache)
    assert [path.name for path in folder.iterdir()] == ["file"]


KILLED = f"""
import os, pathlib, signal, sys
from lingua_flax.data.corpora import prepared_corpus

def write(folder):
    (folder / "leftover" / "deep").mkdir(parents=True)
    (folder / "leftover" / "deep" / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

prepared_corpus.prepare(pathlib.Path(sys.argv[1]), "any", "{KEY}", write)
"""


def test_remains_of_a_killed_process_are_removed(cache, run):
    assert run("-c", KILLED, cache).returncode == -signal.SIGKILL
    assert [path.name for path in prepared(cache)] == ["0" * 16 + ".incomplete", "0" * 16 + ".lock"]
    folder = prepared_corpus.prepare(cache, "any", KEY, functools.partial(write_text, "whole"))
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert prepared(cache) == [folder]


def test_memory_use_does_not_grow_with_the_corpus(files):
    """Preparing and reading 40,000 pairs takes no more memory than 17,000; held, they would take 7 MB more."""
    peaks = []
    for count in (10, 17_000, 40_000):
        lines = (f"source {number} {'x' * 60}\ttarget {number} {'y' * 60}\n" for number in range(count))
        path = files.write(f"{count}.tsv.gz", "".join(lines))
        tracemalloc.start()
        try:
            deque(files.open(train_source=path).split("train"), 0)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < peaks[1] + 1e6, peaks
