"""Subword regularization: another segmentation of every training sentence in every epoch.

SentencePiece samples too, but each process gives other segmentations for the same seed. Here they are a function of the
text and of the numbers drawn, so that a run that is resumed sees those that it would have seen.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from data.corpora.corpus import PairSource
from data.tokenized_pairs import TokenizedPairs
from data.tokenizer import SPACE, Tokenizer, add_special_ids
from host.errors import UserError
from options.special_ids import UNK_ID

_WORDS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")
_UNKNOWN_PENALTY = 10.0  # SentencePiece's: an unknown character scores so much less than the least likely piece
# Words up to this length are computed once; Chinese and Japanese have whole sentences without a space.
_CACHED_LENGTH = 24
_CACHED_WORDS = 1 << 15  # of some 2.5 KB
_CACHED_STATES = 1 << 17  # of some 400 bytes

Draw = Callable[[], float]  # the next number in [0, 1)


class SubwordSampler:
    """Draws segmentations of a text: `sample(text, rng)` is a function of both, the same in every process.

    unigram: P(segmentation) is proportional to exp(alpha * the sum of its pieces' scores) (Kudo 2018, equation 7).
    bpe: whenever merges are possible each is dropped with probability alpha, and of those left the one of highest
    priority is made, until none is left (Provilkov et al. 2020, algorithm 1).

    On sentences of 13 words, one core: 60,000 a second (unigram) and 35,000 (bpe) once the words are known.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, alpha: float):
        """Args: alpha: above 0, and for bpe below 1.

        Raises:
          UserError: the model is of a kind that cannot be sampled from here.
        """
        scores, is_bpe = _read_model(processor, alpha)
        self._normalize = processor.normalize
        self._ids = {piece: processor.piece_to_id(piece) for piece in scores}
        self._byte_ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        self._split = bpe_dropout(scores, alpha) if is_bpe else unigram_lattice(scores, alpha)

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        """Ids of one segmentation of the text, without EOS_ID."""
        text = self._normalize(text)
        draw = iter(rng.random(len(text) + 1).tolist()).__next__  # a word takes at most as many as it has characters
        ids: list[int] = []
        for word in _WORDS.findall(text):
            for piece in self._split(word, draw):
                if (found := self._ids.get(piece)) is not None:
                    ids.append(found)
                else:
                    self._append_unknown(ids, piece)
        return ids

    def _append_unknown(self, ids: list[int], character: str) -> None:
        """Like SentencePiece: as bytes, or as one UNK_ID for all unknown characters in a row."""
        if self._byte_ids[0] != UNK_ID:
            ids.extend(self._byte_ids[byte] for byte in character.encode())
        elif not ids or ids[-1] != UNK_ID:
            ids.append(UNK_ID)


def _read_model(processor: sentencepiece.SentencePieceProcessor, alpha: float) -> tuple[Mapping[str, float], bool]:
    """The scores of the pieces that spell text, and whether the model is bpe rather than unigram."""
    from sentencepiece import sentencepiece_model_pb2 as proto  # 30 ms, only where it is needed

    model = proto.ModelProto.FromString(processor.serialized_model_proto())  # type: ignore[attr-defined]
    kinds = model.trainer_spec
    types = model.SentencePiece
    if kinds.model_type not in (kinds.UNIGRAM, kinds.BPE):
        raise UserError("tokenizer.sampling_alpha needs a tokenizer of kind unigram or bpe")
    if any(piece.type in (types.USER_DEFINED, types.UNUSED) for piece in model.pieces):
        raise UserError(
            "tokenizer.sampling_alpha cannot be used with a tokenizer that has user-defined or unused pieces"
        )
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == types.NORMAL}
    if any(SPACE in piece[1:] for piece in scores):
        raise UserError("tokenizer.sampling_alpha needs a tokenizer whose pieces have a space at their beginning only")
    is_bpe = kinds.model_type == kinds.BPE
    if is_bpe and alpha >= 1:
        raise UserError(f"tokenizer.sampling_alpha must be below 1 for a tokenizer of kind bpe, got {alpha}")
    return scores, is_bpe


# Unigram.


class _Column(NamedTuple):
    """The pieces that may end at one place of a word: where each begins, and cumulative probabilities."""

    starts: list[int]
    cumulative: list[float]


def unigram_lattice(scores: Mapping[str, float], alpha: float) -> Callable[[str, Draw], list[str]]:
    """A function that draws a word's pieces, unknown characters among them: forward filtering, backward sampling."""
    longest = max(map(len, scores))
    unknown = min(scores.values()) - _UNKNOWN_PENALTY

    def lattice(word: str) -> list[_Column]:
        """The column of each end 1 ... len(word)."""
        columns = []
        totals = [0.0]  # the log of the sum, over all segmentations up to here, of exp(alpha * score)
        for end in range(1, len(word) + 1):
            starts = [start for start in range(max(0, end - longest), end) if word[start:end] in scores]
            if not starts or starts[-1] != end - 1:
                starts.append(end - 1)
            logs = [totals[start] + alpha * scores.get(word[start:end], unknown) for start in starts]
            highest = max(logs)
            weights = [math.exp(log - highest) for log in logs]
            total = sum(weights)
            totals.append(highest + math.log(total))
            columns.append(_Column(starts, list(itertools.accumulate(weight / total for weight in weights))))
        return columns

    cached = functools.lru_cache(_CACHED_WORDS)(lattice)

    def split(word: str, draw: Draw) -> list[str]:
        columns = cached(word) if len(word) <= _CACHED_LENGTH else lattice(word)
        pieces = []
        end = len(word)
        while end:
            starts, cumulative = columns[end - 1]
            last = len(starts) - 1
            start = starts[min(bisect.bisect_right(cumulative, draw()), last) if last else 0]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    return split


# BPE.


def bpe_dropout(scores: Mapping[str, float], dropout: float) -> Callable[[str, Draw], tuple[str, ...]]:
    """A function that draws a word's pieces, unknown characters among them, by merging characters."""
    log_dropout = math.log(dropout) if dropout else -math.inf

    def merges(pieces: tuple[str, ...]) -> list[int]:
        """Where a piece can be merged with the next one, by priority: highest score, of equal ones the leftmost."""
        merged = [left + right for left, right in itertools.pairwise(pieces)]
        return sorted((i for i, piece in enumerate(merged) if piece in scores), key=lambda i: -scores[merged[i]])

    cached = functools.lru_cache(_CACHED_STATES)(merges)

    def split(word: str, draw: Draw) -> tuple[str, ...]:
        find = cached if len(word) <= _CACHED_LENGTH else merges
        pieces = tuple(word)
        while found := find(pieces):
            # How many are dropped before the first that is not: at least n with probability dropout ** n.
            dropped = int(math.log(1.0 - draw()) / log_dropout)
            if dropped >= len(found):
                break
            i = found[dropped]
            pieces = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        return pieces

    return split


# Training pairs.


class SampledPairs:
    """Tokenized training pairs that can also be drawn in another segmentation; pickled without what it has cached."""

    def __init__(self, pairs: TokenizedPairs, text: PairSource, tokenizer: Tokenizer, alpha: float, longest: int):
        """Args:
        pairs: some of those in `text`, in their best segmentation; none with a side above `longest` tokens.
        tokenizer: the one that they were made with.
        """
        self._made_of = (pairs, text, tokenizer, alpha, longest)
        self._pairs = pairs
        self._text = text
        self._longest = longest
        self._tag = tokenizer.source_tag
        self._source = SubwordSampler(tokenizer.source, alpha)
        self._target = self._source if tokenizer.target is tokenizer.source else SubwordSampler(tokenizer.target, alpha)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampledPairs, self._made_of

    def __len__(self) -> int:
        return len(self._pairs)

    def draw(self, index: int, rng: np.random.Generator) -> tuple[Sequence[int], Sequence[int]]:
        """The ids of a pair, ended by EOS_ID; a side that becomes too long has its best segmentation."""
        text = self._text[self._pairs.position(index)]
        source = add_special_ids(self._source.sample(text.source, rng), self._tag)
        target = add_special_ids(self._target.sample(text.target, rng))
        if max(len(source), len(target)) <= self._longest:
            return source, target
        best_source, best_target = (ids.tolist() for ids in self._pairs[index])
        return (
            source if len(source) <= self._longest else best_source,
            target if len(target) <= self._longest else best_target,
        )
