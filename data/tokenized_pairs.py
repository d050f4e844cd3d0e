"""Tokenized pairs on disk: written once per corpus, split and tokenizer, then mapped into memory."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from lingua_flax.data.corpora import prepared_corpus
from lingua_flax.data.corpora.corpus import Pair, PairSource
from lingua_flax.data.ragged_arrays import RaggedArray, RaggedWriter
from lingua_flax.data.text_files import chunks
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.digests import json_digest

_TOKENIZED_AT_ONCE = 4096  # pairs
_CHECKED_AT_ONCE = 1 << 18  # pairs whose lengths are compared with a limit
_NO_POSITIONS = np.array([], np.int64)
_FORMAT = 7  # part of the cache key
_DIGEST_NAME = "digest"


class TokenizedPairs:
    """Pairs of id sequences, each ended by EOS_ID; `source` and `target` hold those that are left out, too."""

    def __init__(self, source: RaggedArray, target: RaggedArray, left_out: np.ndarray = _NO_POSITIONS):
        """Leaves out the pairs at these positions of the split, in ascending order. Only the positions take memory."""
        self.source, self.target = source, target
        self._left_out = left_out
        self._kept_before = left_out - np.arange(len(left_out))  # for each pair left out, the number of pairs kept

    def __len__(self) -> int:
        return len(self.source) - len(self._left_out)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and target ids of a pair that is kept; raises IndexError if there is no such pair."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        (position,) = self.positions(np.array([index]))
        return self.source[position], self.target[position]

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Returns the positions in the split of pairs that are kept, [n] int64; does not check the indices."""
        return indices + np.searchsorted(self._kept_before, indices, side="right")

    def no_longer_than(self, length: int) -> TokenizedPairs:
        """Returns the pairs with at most `length` tokens on either side."""
        too_long = [self._left_out]
        for begin in range(0, len(self.source), _CHECKED_AT_ONCE):
            positions = np.arange(begin, min(begin + _CHECKED_AT_ONCE, len(self.source)))
            longest = np.maximum(self.source.lengths(positions), self.target.lengths(positions))
            too_long.append(positions[longest > length])
        return TokenizedPairs(self.source, self.target, np.unique(np.concatenate(too_long)))


def tokenize(pairs: PairSource, digest: str, tokenizer: Tokenizer, cache: Path) -> TokenizedPairs:
    """Returns the tokenized training pairs of the corpus with this digest, written to the cache on first use.

    Raises UserError if the cache folder cannot be written or the tokenized pairs in it are damaged, and RunError if the
    disk is full.
    """
    key = json_digest([_FORMAT, digest, tokenizer.digest, tokenizer.source_tags])
    directory = prepared_corpus.cached_folder(cache, "tokens", key, lambda path: _write(path, pairs, tokenizer))
    try:
        source, target = (RaggedArray.open(directory / side, dtype) for side, dtype in _dtypes(tokenizer).items())
        stored = (directory / _DIGEST_NAME).read_text()
    except (OSError, ValueError) as error:
        raise prepared_corpus.damaged(directory, error) from error
    if prepared_corpus.ragged_digest(directory / side for side in Pair._fields) != stored:
        raise prepared_corpus.damaged(directory, "the SHA-256 of its tokens differs")
    return TokenizedPairs(source, target)


def _dtypes(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the smallest dtype that holds the ids of each side."""
    sizes = {"source": tokenizer.source_vocab_size, "target": tokenizer.target_vocab_size}
    return {side: "<u2" if size <= 1 << 16 else "<i4" for side, size in sizes.items()}


def _write(directory: Path, pairs: PairSource, tokenizer: Tokenizer) -> None:
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(RaggedWriter(directory / side, dtype)) for side, dtype in _dtypes(tokenizer).items()
        )
        for chunk in chunks(pairs, _TOKENIZED_AT_ONCE):
            for writer, sentences in zip((source, target), tokenizer.encode_pairs(chunk), strict=True):
                ids = np.fromiter(itertools.chain.from_iterable(sentences), np.int32)
                writer.append(ids, [len(sentence) for sentence in sentences])
    digest = prepared_corpus.ragged_digest(directory / side for side in Pair._fields)
    (directory / _DIGEST_NAME).write_text(digest)
