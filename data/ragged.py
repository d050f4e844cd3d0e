"""Sequences of different lengths on disk: all values in one flat file, and where each sequence ends in another.

Text (bytes) and tokens (ids) are stored alike and mapped into memory: a sequence is found in a microsecond, nothing is
read that is not asked for, and processes that open the same files share their pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_VALUES, _ENDS = ".values.npy", ".ends.npy"


class RaggedArray:
    """Read-only access to flat `values` and the `ends` of sequences in them; pickled as the path it was opened from.

    Attributes:
      values: [total length].
      ends: [number of sequences] int64; sequence i is values[ends[i - 1] : ends[i]].
    """

    def __init__(self, values: np.ndarray, ends: np.ndarray, path: Path | None = None):
        self.values, self.ends, self._path = values, ends, path

    @classmethod
    def open(cls, path: Path) -> RaggedArray:
        """Maps what a RaggedWriter has written under `path` into memory.

        Raises:
          OSError, ValueError: a file is missing, or is not what the writer has written.
        """
        values, ends = (_mapped(path.with_name(path.name + suffix)) for suffix in (_VALUES, _ENDS))
        if int(ends[-1] if len(ends) else 0) != len(values):
            raise ValueError(
                f"{path.name} has {len(values)} values, but its sequences need {ends[-1] if len(ends) else 0}"
            )
        return cls(values, ends, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (RaggedArray.open, (self._path,)) if self._path else (RaggedArray, (self.values, self.ends))

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


class RaggedWriter:
    """Writes the files of a RaggedArray, some sequences at a time; a context that completes them at its end."""

    def __init__(self, path: Path, dtype: str):
        """Args: path: the beginning of both files' names; dtype: of the values, such as "<u2"."""
        self._values = _ArrayFile(path.with_name(path.name + _VALUES), dtype)
        self._ends = _ArrayFile(path.with_name(path.name + _ENDS), "<i8")

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._values.close()
        finally:
            self._ends.close()

    def append(self, values: np.ndarray, lengths: Sequence[int] | np.ndarray) -> None:
        """Adds sequences of these lengths, given as one array of all their values."""
        self._ends.append(self._values.length + np.cumsum(lengths, dtype=np.int64))
        self._values.append(values)


class _ArrayFile:
    """A one-dimensional .npy file that grows: its header is written anew at the end, when its length is known."""

    def __init__(self, path: Path, dtype: str):
        self.length = 0
        self._dtype = np.dtype(dtype)
        self._file = open(path, "wb")  # noqa: SIM115  closed by `close`
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)  # tofile would not say that the disk is full
        self.length += len(values)

    def close(self) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        # NumPy pads the header such that any length fits into the same number of bytes.
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def _mapped(path: Path) -> np.ndarray:
    """The array of an .npy file, mapped into memory; an empty one cannot be mapped and is read."""
    array = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else np.load(path)
    return array.view(np.ndarray)  # np.memmap costs a microsecond at each access
