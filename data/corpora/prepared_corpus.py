"""Prepared corpora on disk: CACHE/CORPUS/KEY/, written once and then only read.

KEY is the beginning of a hash of all that a corpus is made from, so changed input is never served from an old copy. A
folder appears under its name when it is complete. It has the UTF-8 bytes of both sides of each split as ragged arrays,
and in corpus.json the number and the SHA-256 of its pairs.
"""

from __future__ import annotations

import itertools
import json
import logging
import operator
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from data.corpora.corpus import Corpus, Pair
from data.corpora.pair_files import sha256
from data.ragged_arrays import RaggedArray, RaggedWriter, files_of
from host.cache import cache_directory
from host.digests import json_digest
from host.errors import RunError, UserError, is_disk_full
from options.schema import DataConfig

CHUNK = 4096  # pairs read or written at a time
_FORMAT = 3  # part of every key: raise it when the same input would be prepared differently
_CONTENTS = "corpus.json"

_logger = logging.getLogger(__name__)


def open_prepared(
    config: DataConfig, kind: str, made_from: Sequence[object], write: Callable[[Path], None], name: str | None = None
) -> Corpus:
    """Open a corpus; where it is not in the cache folder yet, write(temporary folder) prepares it first.

    Args:
        kind: the folder of the cache that it lies in.
        made_from: strings, numbers and (nested) lists of them that tell it from all others of its kind.
        name: of the corpus, where it is not that of its kind.

    Raises:
        UserError: the cache folder cannot be written, or what lies there is damaged.
        RunError: the disk is full.
    """
    languages = (config.source_language, config.target_language)
    key = json_digest([kind, _FORMAT, languages, made_from])
    folder = prepare(cache_directory(config.cache_directory), kind, key, write)
    try:
        contents = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))
        splits = {split: StoredPairs(folder, split, **written) for split, written in contents["splits"].items()}
        train = json_digest([languages, contents["splits"]["train"]["sha256"]])
        return Corpus(name or kind, *languages, train, splits, tuple(contents["notes"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, error) from error


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
                    partial.rename(folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except Exception as error:
        if is_disk_full(error):
            remedy = "free some space, or choose another folder with --data.cache-directory"
            raise RunError(f"{folder}: the disk is full, the corpus could not be prepared; {remedy}") from error
        raise
    return folder


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold a lock file, made here and removed at the end; a process that dies frees it.

    Raises:
        UserError: its folder cannot be written.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock).acquire()
    except OSError as error:
        if is_disk_full(error):
            raise
        remedy = "choose another folder with --data.cache-directory"
        raise UserError(
            f"{lock.parent}: prepared corpora cannot be written there ({error.strerror}); {remedy}"
        ) from error
    with held:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # still held: whoever waits for it finds it removed and makes another


class Texts(NamedTuple):
    """Sentences as arrays: the UTF-8 bytes of all of them in a row, and the number of bytes of each."""

    content: np.ndarray
    lengths: np.ndarray

    @classmethod
    def encode(cls, sentences: Sequence[str]) -> Texts:
        """Return the arrays of these sentences."""
        encoded = [sentence.encode() for sentence in sentences]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), np.array([len(text) for text in encoded], np.int64))

    def split(self) -> list[bytes]:
        """Return the bytes of each sentence."""
        content, ends = self.content.tobytes(), np.cumsum(self.lengths).tolist()
        return [content[begin:end] for begin, end in itertools.pairwise([0, *ends])]

    def where(self, chosen: np.ndarray) -> Texts:
        """Return the sentences at which the array of booleans is true."""
        return Texts(self.content[np.repeat(chosen, self.lengths)], self.lengths[chosen])


class SplitWriter(ExitStack):
    """Writes the pairs of one split, some at a time; a context that completes the files at its end."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__()
        self.count = 0
        self._folder, self._split = folder, split
        self._sides = [self.enter_context(RaggedWriter(path, "u1")) for path in _paths(folder, split)]

    def write(self, pairs: Sequence[Pair]) -> None:
        """Append pairs."""
        self.write_texts(Texts.encode([source for source, _ in pairs]), Texts.encode([target for _, target in pairs]))

    def write_texts(self, source: Texts, target: Texts) -> None:
        """Append the pairs that these are the sides of."""
        for writer, texts in zip(self._sides, (source, target), strict=True):
            writer.append(*texts)
        self.count += len(source.lengths)

    def written(self) -> dict[str, Any]:
        """Return what StoredPairs is to find: the number of pairs, and the SHA-256 of them in their order."""
        return {"count": self.count, "sha256": _digest(self._folder, self._split)}


def write_contents(folder: Path, splits: Mapping[str, SplitWriter], notes: Sequence[str]) -> None:
    """Complete a prepared corpus with what is said of it."""
    contents = {"splits": {name: split.written() for name, split in splits.items()}, "notes": list(notes)}
    (folder / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")


class StoredPairs:
    """One split, mapped into memory: free to be read by several threads, and pickled as where it lies."""

    def __init__(self, folder: Path, split: str, count: int, sha256: str) -> None:
        """Raises: OSError, ValueError: a file is missing or has not so many pairs."""
        self._folder, self._split, self._sha256 = folder, split, sha256
        self._source, self._target = (RaggedArray.open(path, "u1") for path in _paths(folder, split))
        if not len(self._source) == len(self._target) == count:
            raise ValueError(f"{split} should have {count} pairs")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Pair:
        """Return the pair at the index, which counts from 0 and never from the end."""
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        try:
            return Pair(self._source[index].tobytes().decode(), self._target[index].tobytes().decode())
        except UnicodeDecodeError as error:
            raise _damaged(self._folder, error) from error

    def __iter__(self) -> Iterator[Pair]:
        """Yield all pairs, once they have been compared with their SHA-256."""
        if _digest(self._folder, self._split) != self._sha256:
            raise _damaged(self._folder, f"{self._split} is not what was written")
        for sides in self.blocks():
            yield from map(Pair, *([sentence.decode() for sentence in side.split()] for side in sides))

    def blocks(self) -> Iterator[tuple[Texts, Texts]]:
        """Yield sources and targets, CHUNK pairs at a time."""
        for begin in range(0, len(self), CHUNK):
            end = begin + CHUNK
            yield Texts(*self._source.block(begin, end)), Texts(*self._target.block(begin, end))


def _paths(folder: Path, split: str) -> list[Path]:
    return [folder / f"{split}.{side}" for side in Pair._fields]


def _digest(folder: Path, split: str) -> str:
    """Return the SHA-256 of the pairs of a split in their order."""
    return json_digest([sha256(file) for path in _paths(folder, split) for file in files_of(path)])


def _damaged(folder: Path, reason: object) -> UserError:
    return UserError(f"{folder}: this prepared corpus is damaged ({reason}); delete the folder and start again")
