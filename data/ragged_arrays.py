"""Sequences of different lengths on disk: all values in one flat file, and where each sequence ends in another.

Text (bytes) and tokens (ids) are stored alike and mapped into memory: a sequence is found in a microsecond, nothing is
read that is not asked for, and processes that open the same files share their pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

_ENDS_DTYPE = "<i8"


class RaggedArray:
    """Read-only access to flat `values` and the `ends` of sequences in them; pickled as what it was opened from.

    Attributes:
      values: [total length].
      ends: [number of sequences] int64; sequence i is values[ends[i - 1] : ends[i]].
    """

    def __init__(self, values: np.ndarray, ends: np.ndarray, path: Path | None = None):
        self.values, self.ends, self._path = values, ends, path

    @classmethod
    def open(cls, path: Path, dtype: str) -> RaggedArray:
        """Maps what a RaggedWriter of that path and dtype has written into memory.

        Raises:
          OSError, ValueError: a file is missing, or is not what the writer has written.
        """
        values, ends = map(_mapped, files_of(path), (dtype, _ENDS_DTYPE))
        needed = int(ends[-1]) if len(ends) else 0
        if needed != len(values):
            raise ValueError(f"{path.name} has {len(values)} values, but its sequences need {needed}")
        return cls(values, ends, path)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path:
            return RaggedArray.open, (self._path, self.values.dtype.str)
        return RaggedArray, (self.values, self.ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> np.ndarray:
        """The values of a sequence; `index` counts from 0 and never from the end."""
        return self.values[self.ends[index - 1] if index else 0 : self.ends[index]]

    def block(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The values of sequences begin to end - 1, or to the last one, in a row, and the length of each."""
        ends = self.ends[begin:end]
        start = self.ends[begin - 1] if begin else 0
        return self.values[start : ends[-1] if len(ends) else start], np.diff(ends, prepend=start)

    def starts(self, indices: np.ndarray) -> np.ndarray:
        """Where each of the sequences begins in `values`, int64."""
        return np.where(indices > 0, self.ends[indices - 1], 0)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """The number of values of each of the sequences, int64."""
        return self.ends[indices] - self.starts(indices)


class RaggedWriter(ExitStack):
    """Writes the files of a RaggedArray, some sequences at a time; a context that closes them at its end."""

    def __init__(self, path: Path, dtype: str):
        """Args: path: the beginning of both files' names; dtype: of the values, such as "<u2"."""
        super().__init__()
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._values, self._ends = (self.enter_context(file.open("wb")) for file in files_of(path))

    def append(self, values: np.ndarray, lengths: Sequence[int] | np.ndarray) -> None:
        """Adds sequences of these lengths, given as one array of all their values."""
        self._ends.write((self._length + np.cumsum(lengths, dtype=_ENDS_DTYPE)).data)
        self._values.write(np.ascontiguousarray(values, self._dtype).data)  # tofile would not say that the disk is full
        self._length += len(values)


def files_of(path: Path) -> tuple[Path, Path]:
    """The files of the RaggedArray that is opened by this path: values and ends."""
    return path.with_name(f"{path.name}.values"), path.with_name(f"{path.name}.ends")


def _mapped(path: Path, dtype: str) -> np.ndarray:
    """A flat file, mapped into memory; an empty one cannot be mapped."""
    array = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
    return array.view(np.ndarray)  # np.memmap costs a microsecond at each access
