"""Prepared corpora on disk: CACHE/CORPUS/KEY/, written once and then only read.

KEY is the beginning of a hash of everything that a corpus is made from, so a corpus whose input has changed is prepared
again. A folder gets its name only when it is complete. It contains both sides of each split as ragged arrays of UTF-8
bytes; corpus.json has their numbers and SHA-256, the notes for the user, and which splits were held out of train.
"""

import json
import logging
import operator
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lingua_flax.data.corpora.corpus import Corpus, Pair
from lingua_flax.data.corpora.pair_files import sha256
from lingua_flax.data.ragged_arrays import RaggedArray, RaggedWriter, files_of
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import RunError, UserError, is_disk_full
from lingua_flax.host.locks import acquire
from lingua_flax.options.schema import DataConfig

CHUNK = 4096  # pairs read or written at a time
_FORMAT = 5  # part of every key; increase it whenever the same input is prepared differently
CONTENTS_NAME = "corpus.json"

_logger = logging.getLogger(__name__)


def open_prepared(
    config: DataConfig, kind: str, made_from: Sequence[object], write: Callable[[Path], None], name: str | None = None
) -> Corpus:
    """Opens a corpus; if it is not in the cache folder yet, write(temporary folder) prepares it first.

    `kind` is the subfolder of the cache folder and, by default, the name of the corpus. What it is `made_from`, in
    JSON, distinguishes it from others. Raises UserError if the cache folder cannot be written or the prepared corpus is
    damaged, and RunError if the disk is full.
    """
    languages = (config.source_language, config.target_language)
    divided_as = [sha256(config.held_out)] if config.held_out else []
    key = json_digest([kind, _FORMAT, languages, made_from, *divided_as])
    folder = cached_folder(cache_directory(config.cache_directory), kind, key, write)
    try:
        contents = json.loads((folder / CONTENTS_NAME).read_text(encoding="utf-8"))
        splits = {split: StoredPairs(folder, split, **summary) for split, summary in contents["splits"].items()}
        digest = json_digest([languages, contents["splits"]["train"]["sha256"]])
        notes, held_out = tuple(contents["notes"]), tuple(contents["held_out"])
        by_target = contents["held_out_by_target"]
        return Corpus(name or kind, *languages, digest, splits, notes, held_out, by_target)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, error) from error


def cached_folder(cache: Path, kind: str, key: str, write: Callable[[Path], None]) -> Path:
    """Returns the folder CACHE/KIND/KEY; if it does not exist yet, write(temporary folder) fills it first.

    Of processes that call this at once, one writes, and the others wait for it; what a killed one leaves is removed by
    the next one. Raises UserError if the cache folder cannot be written, and RunError if the disk is full.
    """
    folder = cache / kind / key[:16]
    partial = folder.with_name(f"{folder.name}.incomplete")
    if folder.is_dir():
        return folder
    try:
        with exclusive_lock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _logger.info("preparing a corpus in %s", folder)
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                try:
                    write(partial)
                    _sync(partial)
                    partial.rename(folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except Exception as error:
        if is_disk_full(error):
            remedy = "free some space, or choose another folder with --data.cache-directory"
            raise RunError(f"{folder}: the disk is full, so the corpus could not be prepared; {remedy}") from error
        raise
    return folder


def _sync(folder: Path) -> None:
    """Waits until the files of a folder are on disk, so that none is empty after a power failure."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Holds a lock on a file, which is created on entry and removed on exit; a process that dies releases it.

    Raises UserError if the folder of the file cannot be written.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = acquire(lock, blocking=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        remedy = "choose another folder with --data.cache-directory"
        reason = f"prepared corpora cannot be written there ({error.strerror})"
        raise UserError(f"{lock.parent}: {reason}; {remedy}") from error
    try:
        yield
    finally:
        if held:
            lock.unlink(missing_ok=True)  # while still held: processes that wait for it notice and create another
            held.release()


class SplitWriter(ExitStack):
    """Writes the pairs of one split, some at a time; a context manager that completes the files on exit."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__()
        self.count = 0
        self._folder, self._split = folder, split
        self._sides = [self.enter_context(RaggedWriter(path, "u1")) for path in _paths(folder, split)]

    def write(self, pairs: Sequence[Pair]) -> None:
        """Appends pairs."""
        self.write_encoded([source.encode() for source, _ in pairs], [target.encode() for _, target in pairs])

    def write_encoded(self, sources: Sequence[bytes], targets: Sequence[bytes]) -> None:
        """Appends the pairs that have these sources and targets."""
        for writer, texts in zip(self._sides, (sources, targets), strict=True):
            writer.append(np.frombuffer(b"".join(texts), np.uint8), list(map(len, texts)))
        self.count += len(sources)

    def summary(self) -> dict[str, Any]:
        """Returns the number of pairs and the SHA-256 of the pairs in order, as StoredPairs expects them."""
        return {"count": self.count, "sha256": ragged_digest(_paths(self._folder, self._split))}


class StoredPairs:
    """One split, mapped into memory; several threads may read it, and it is pickled as paths."""

    def __init__(self, folder: Path, split: str, count: int, sha256: str) -> None:
        """Maps the files into memory; raises OSError or ValueError if they do not have `count` pairs."""
        self._folder, self._split, self._sha256 = folder, split, sha256
        self._source, self._target = (RaggedArray.open(path, "u1") for path in _paths(folder, split))
        if not len(self._source) == len(self._target) == count:
            raise ValueError(f"{split} should have {count} pairs")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Pair:
        """Returns a pair. Negative indices are not supported."""
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        try:
            return Pair(self._source[index].tobytes().decode(), self._target[index].tobytes().decode())
        except UnicodeDecodeError as error:
            raise damaged(self._folder, error) from error

    def __iter__(self) -> Iterator[Pair]:
        """Yields all pairs after comparing them with their SHA-256."""
        if ragged_digest(_paths(self._folder, self._split)) != self._sha256:
            raise damaged(self._folder, f"the SHA-256 of {self._split} differs")
        for sides in self.blocks():
            yield from map(Pair, *([sentence.decode() for sentence in side] for side in sides))

    def lengths(self) -> np.ndarray:
        """Returns the numbers of bytes of each source and target, [pairs, 2]."""
        return np.stack([np.diff(side.ends, prepend=0) for side in (self._source, self._target)], axis=1)

    def blocks(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yields encoded sources and targets, CHUNK pairs at a time."""
        for begin in range(0, len(self), CHUNK):
            yield self._source.texts(begin, begin + CHUNK), self._target.texts(begin, begin + CHUNK)


def _paths(folder: Path, split: str) -> list[Path]:
    return [folder / f"{split}.{side}" for side in Pair._fields]


def ragged_digest(paths: Iterable[Path]) -> str:
    """Returns a digest of the files of the RaggedArrays at these paths."""
    return json_digest([sha256(file) for path in paths for file in files_of(path)])


def damaged(folder: Path, reason: object) -> UserError:
    """Returns the error of a prepared corpus whose files are not as they were written."""
    return UserError(f"{folder}: this prepared corpus is damaged ({reason}); delete the folder and start again")
