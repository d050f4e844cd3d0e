"""Ragged arrays on disk, compared with lists."""

import pickle

import numpy as np
import pytest

from lingua_flax.data.ragged_arrays import RaggedArray, RaggedWriter


def write(path, chunks):
    """Writes the sequences of each chunk with one call of append."""
    with RaggedWriter(path, "<u2") as writer:
        for chunk in chunks:
            values = np.array([value for sequence in chunk for value in sequence], np.int64)
            writer.append(values, [len(sequence) for sequence in chunk])


CHUNKS: list[list[list[int]]] = [[[7, 8], [], [65535]], [], [[1, 2, 3]], [[]]]
SEQUENCES = [sequence for chunk in CHUNKS for sequence in chunk]


def test_sequences_their_places_and_files_do_not_depend_on_chunks(tmp_path):
    for name, chunks in (("some", CHUNKS), ("each", [[sequence] for sequence in SEQUENCES])):
        write(tmp_path / name, chunks)
        read = RaggedArray.open(tmp_path / name, "<u2")
        assert [read[i].tolist() for i in range(len(read))] == SEQUENCES
        assert read.values.dtype == np.uint16
    some, each = ([file.read_bytes() for file in sorted(tmp_path.glob(f"{name}.*"))] for name in ("some", "each"))
    assert some == each
    chosen = [3, 0, 4, 0, 2]
    places = zip(chosen, read.starts(np.array(chosen)), read.lengths(np.array(chosen)), strict=True)
    for i, start, length in places:
        assert read.values[start : start + length].tolist() == SEQUENCES[i]


def test_arrays_are_pickled_as_paths(tmp_path):
    write(tmp_path / "a", [[range(5000)]])
    pickled = pickle.dumps(RaggedArray.open(tmp_path / "a", "<u2"))
    assert len(pickled) < 500
    assert pickle.loads(pickled)[0].tolist() == list(range(5000))


def test_empty_files_are_arrays_and_truncated_ones_are_not(tmp_path):
    write(tmp_path / "a", CHUNKS)
    path = tmp_path / "a.values"
    whole = path.read_bytes()
    write(tmp_path / "empty", [])
    assert len(RaggedArray.open(tmp_path / "empty", "<u2")) == 0
    for cut, message in ((2, "a has 5 values, but its sequences need 6"), (1, "not a multiple")):
        path.write_bytes(whole[:-cut])
        with pytest.raises(ValueError, match=message):
            RaggedArray.open(tmp_path / "a", "<u2")
