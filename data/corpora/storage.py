"""Prepared corpora on disk: CACHE/CORPUS/KEY/, ArrayRecord files that are written once and then only read.

KEY is the beginning of a hash of all that a corpus is made from, so changed input is never served from an old copy. A
folder appears under its name when it is complete; until then it is called KEY.incomplete and locked by its writer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import operator
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from configs.errors import RunError, UserError, is_disk_full
from data.corpora.corpus import Pair

# A writer keeps some 50 bytes of every record until its file is closed: shards keep that small for any corpus.
_SHARD_RECORDS = 1 << 18
_WRITER_OPTIONS = "group_size:1"  # readable one by one
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # for random access
_CONTENTS = "corpus.json"
_LOCK = ".lock"
_LENGTH = struct.Struct("<I")

_logger = logging.getLogger(__name__)


def fingerprint(*parts: object) -> str:
    """Return the SHA-256, in hex, of strings, numbers and (nested) lists of them."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def prepare(cache: Path, corpus: str, key: str, write: Callable[[Path], None]) -> Path:
    """Return the folder of the prepared corpus; where it is not there yet, write(temporary folder) fills it first.

    Any number of processes may do so at once: one writes, the others wait for it. What a killed process left behind is
    cleared away by the next to prepare the same corpus.

    Raises:
        UserError: the cache folder cannot be written.
        RunError: the disk is full.
    """
    folder = cache / corpus / key[:16]
    partial = folder.with_name(f"{folder.name}.incomplete")
    try:
        while not folder.is_dir():
            with _claimed(partial) as ours:
                if ours and not folder.is_dir():
                    _logger.info("preparing a corpus in %s", folder)
                    write(partial)
                    partial.rename(folder)
    except Exception as error:
        if is_disk_full(error):
            remedy = "free some space, or choose another folder with --data.cache-directory"
            raise RunError(f"{folder}: the disk is full, the corpus could not be prepared; {remedy}") from error
        raise
    return folder


@contextmanager
def _claimed(partial: Path) -> Iterator[bool]:
    """Make the folder, empty, and hold its lock; afterwards remove it, unless it was renamed.

    False where another process completed the folder or gave it up while we waited for it. The lock is a file in the
    folder and goes with it, and a process that dies frees it: who holds the lock that is to be found in the folder may
    clear away all else that lies there.
    """
    lock = partial / _LOCK
    descriptor = _hold(lock)
    try:
        ours = _is_same_file(lock, descriptor)
        if ours:
            _clear(partial)
        try:
            yield ours
        finally:
            if _is_same_file(lock, descriptor):
                _clear(partial)
                lock.unlink()
                with suppress(OSError):  # the next has its lock there already
                    partial.rmdir()
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _hold(lock: Path) -> int | None:
    """Open the lock file, made where it is missing, and wait for the lock; None where its folder went meanwhile."""
    descriptor = None
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # renamed or removed since the line above
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        if is_disk_full(error):
            raise
        remedy = "choose another folder with --data.cache-directory"
        folder = lock.parent.parent
        raise UserError(f"{folder}: prepared corpora cannot be written there ({error.strerror}); {remedy}") from error


def _is_same_file(path: Path, descriptor: int | None) -> bool:
    try:
        return descriptor is not None and os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clear(partial: Path) -> None:
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()


class CorpusWriter:
    """Writes the splits of one corpus, side by side and pair by pair."""

    def __init__(self, folder: Path, splits: Sequence[str]) -> None:
        self.counts = dict.fromkeys(splits, 0)
        self._folder = folder
        self._writers: dict[str, ArrayRecordWriter] = {}
        self._digests = {split: hashlib.sha256() for split in splits}

    def write(self, split: str, pair: Pair) -> None:
        """Append a pair to a split."""
        shard, position = divmod(self.counts[split], _SHARD_RECORDS)
        if position == 0:
            if shard:
                self._writers[split].close()
            path = _shard_path(self._folder, split, shard)
            self._writers[split] = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
        record = _encode(pair)
        self._writers[split].write(record)
        self._digests[split].update(_LENGTH.pack(len(record)) + record)  # 0.5 us
        self.counts[split] += 1

    def close(self, notes: Sequence[str] = ()) -> None:
        """Complete the corpus, with the notes that it is to be opened with."""
        for writer in self._writers.values():
            writer.close()
        digests = {split: digest.hexdigest() for split, digest in self._digests.items()}
        contents = {"splits": self.counts, "notes": list(notes), "sha256": digests}
        (self._folder / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")


def read_corpus(folder: Path) -> tuple[Mapping[str, StoredPairs], tuple[str, ...]]:
    """Return the splits and notes of what a CorpusWriter has written.

    Raises:
        UserError: the folder is damaged.
    """
    try:
        contents = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))
        splits = {name: StoredPairs(folder, name, count) for name, count in contents["splits"].items()}
        return splits, tuple(contents["notes"])
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _damaged(folder, error) from error


def read_digests(folder: Path) -> Mapping[str, str]:
    """Return, by split, the SHA-256 of the pairs that a CorpusWriter has written, in their order.

    Raises:
        UserError: the folder is damaged.
    """
    try:
        digests: Mapping[str, str] = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))["sha256"]
        return digests
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, error) from error


class StoredPairs:
    """One split on disk; may be read from several threads."""

    def __init__(self, folder: Path, split: str, count: int) -> None:
        self._count = count
        self._folder = folder
        self._lock = threading.Lock()
        paths = [_shard_path(folder, split, shard) for shard in range(-(-count // _SHARD_RECORDS))]
        self._readers = [ArrayRecordReader(str(path), _READER_OPTIONS) for path in paths]
        if sum(reader.num_records() for reader in self._readers) != count:
            raise _damaged(folder, f"{split} should have {count} pairs")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Pair:
        """Return the pair at the index, which counts from 0 and never from the end."""
        index = operator.index(index)
        if not 0 <= index < self._count:
            raise IndexError(f"pair {index} of {self._count}")
        shard, position = divmod(index, _SHARD_RECORDS)
        reader = self._readers[shard]
        try:
            # 2.5 us, whereas reader.read([position]) starts threads: 100 us in a small file, 1 ms in a large one.
            with self._lock:
                reader.seek(position)
                return _decode(reader.read())
        except RuntimeError as error:
            raise _damaged(self._folder, error) from error

    def __iter__(self) -> Iterator[Pair]:
        return (self[index] for index in range(self._count))


def _shard_path(folder: Path, split: str, shard: int) -> Path:
    return folder / f"{split}-{shard:05d}.array_record"


def _encode(pair: Pair) -> bytes:
    source = pair.source.encode()
    return _LENGTH.pack(len(source)) + source + pair.target.encode()


def _decode(record: bytes) -> Pair:
    middle = _LENGTH.size + _LENGTH.unpack_from(record)[0]
    return Pair(record[_LENGTH.size : middle].decode(), record[middle:].decode())


def _damaged(folder: Path, reason: object) -> UserError:
    return UserError(f"{folder}: this prepared corpus is damaged ({reason}); delete the folder and start again")
