"""Sequences of different lengths on disk: all values in one flat file, the end of each sequence in another.

Text (bytes) and tokens (ids) are stored in the same way. The files are mapped into memory: only the sequences that are
accessed are read, and processes that open the same files share their pages.
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

_ENDS_DTYPE = "<i8"


class RaggedArray:
    """Sequences of different lengths: values[ends[i - 1] : ends[i]]; if opened from files, pickled as their path."""

    def __init__(self, values: np.ndarray, ends: np.ndarray, path: Path | None = None):
        self.values, self.ends, self._path = values, ends, path

    @classmethod
    def open(cls, path: Path, dtype: str) -> Self:
        """Maps the files into memory that a RaggedWriter with the same path and dtype has written.

        Raises OSError if a file cannot be read, and ValueError if one does not have the size that was written.
        """
        values, ends = map(_map_file, files_of(path), (dtype, _ENDS_DTYPE))
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
        """Returns the values of a sequence. Negative indices are not supported."""
        return self.values[self.ends[index - 1] if index else 0 : self.ends[index]]

    def texts(self, begin: int, end: int) -> list[bytes]:
        """Returns sequences begin to end - 1 (or to the last one) of an array of bytes, read at once."""
        start = int(self.ends[begin - 1]) if begin else 0
        ends = (self.ends[begin:end] - start).tolist()
        content = self.values[start : start + ends[-1]].tobytes()
        return [content[i:j] for i, j in itertools.pairwise([0, *ends])]

    def starts(self, indices: np.ndarray) -> np.ndarray:
        """Returns the index in `values` at which each of the sequences begins, int64."""
        return np.where(indices > 0, self.ends[indices - 1], 0)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Returns the number of values of each of the sequences, int64."""
        return self.ends[indices] - self.starts(indices)


class RaggedWriter(ExitStack):
    """Writes the files of a RaggedArray, some sequences at a time; a context manager that closes the files on exit."""

    def __init__(self, path: Path, dtype: str):
        """Creates the files, given their common path without suffix and the dtype of the values, such as "<u2"."""
        super().__init__()
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._values, self._ends = (self.enter_context(file.open("wb")) for file in files_of(path))

    def append(self, values: np.ndarray, lengths: Sequence[int] | np.ndarray) -> None:
        """Appends sequences of these lengths, whose values are concatenated in one array."""
        self._ends.write((self._length + np.cumsum(lengths, dtype=_ENDS_DTYPE)).data)
        # ndarray.tofile would not report a full disk as the cause of its error.
        self._values.write(np.ascontiguousarray(values, self._dtype).data)
        self._length += len(values)


def files_of(path: Path) -> tuple[Path, Path]:
    """Returns the two files of the RaggedArray at this path: values and ends."""
    return path.with_name(f"{path.name}.values"), path.with_name(f"{path.name}.ends")


def _map_file(path: Path, dtype: str) -> np.ndarray:
    """Returns a flat file mapped into memory, or an empty array for an empty file, which cannot be mapped."""
    array = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
    return array.view(np.ndarray)  # faster to index than np.memmap
