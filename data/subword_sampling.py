"""Subword regularization: a new segmentation of every training sentence in every epoch.

Unlike SentencePiece's own, which differ between processes, they are a function of the text and of the random numbers
drawn, so a resumed run sees the same ones.
"""

import bisect
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sentencepiece

from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.data.tokenizer import SPACE, Tokenizer, read_model
from lingua_flax.host.errors import UserError
from lingua_flax.options.special_ids import UNK_ID

_WORDS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")
_UNKNOWN_PENALTY = 10.0  # as in SentencePiece: subtracted from the lowest piece score to score an unknown character
# Longer words are not cached: Chinese and Japanese have whole sentences without a space.
_CACHED_LENGTH = 24
_CACHED_WORDS = 1 << 15  # about 2.5 KB each
_CACHED_STATES = 1 << 17  # about 400 bytes each

Draw = Callable[[], float]  # returns the next random number in [0, 1)


class SubwordSampler:
    """Samples segmentations of a text: `sample(text, rng)` is a function of both, the same in every process.

    unigram: P(segmentation) is proportional to exp(alpha * the sum of its pieces' scores) (Kudo 2018, equation 7).
    bpe: at each step every possible merge is dropped with probability alpha, and the remaining merge of highest
    priority is applied, until none remains (Provilkov et al. 2020, algorithm 1).
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, alpha: float):
        """Reads the pieces and scores; raises UserError if this kind of model or, for bpe, this alpha is impossible."""
        self._arguments = (processor, alpha)
        scores, is_bpe = _piece_scores(processor, alpha)
        self._normalize = processor.normalize
        self._ids = {piece: processor.piece_to_id(piece) for piece in scores}
        # A placeholder is in no other piece, so it is split off like an unknown character.
        known = ((piece, processor.piece_to_id(piece)) for piece in PLACEHOLDERS)
        self._ids |= {piece: piece_id for piece, piece_id in known if piece_id != UNK_ID}
        self._byte_ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        self._split = bpe_dropout(scores, alpha) if is_bpe else unigram_lattice(scores, alpha)

    def __reduce__(self) -> tuple[Any, ...]:
        return SubwordSampler, self._arguments  # without the caches

    def sample(self, text: str, rng: np.random.Generator) -> list[int]:
        """Returns the ids of a random segmentation of the text, without EOS_ID."""
        text = self._normalize(text)
        draw = iter(rng.random(len(text) + 1).tolist()).__next__  # a word takes at most one number per character
        ids: list[int] = []
        for word in _WORDS.findall(text):
            for piece in self._split(word, draw):
                if (piece_id := self._ids.get(piece)) is not None:
                    ids.append(piece_id)
                elif self._byte_ids[0] != UNK_ID:
                    ids.extend(self._byte_ids[byte] for byte in piece.encode())
                elif not ids or ids[-1] != UNK_ID:  # one for each run of unknown characters, as SentencePiece does
                    ids.append(UNK_ID)
        return ids


def samplers_of(tokenizer: Tokenizer, alpha: float) -> tuple[SubwordSampler, SubwordSampler]:
    """Returns the samplers of both sides; raises UserError like SubwordSampler."""
    source = SubwordSampler(tokenizer.source, alpha)
    return source, source if tokenizer.target is tokenizer.source else SubwordSampler(tokenizer.target, alpha)


def _piece_scores(processor: sentencepiece.SentencePieceProcessor, alpha: float) -> tuple[Mapping[str, float], bool]:
    """Returns the scores of the pieces that spell text, and whether the model is bpe rather than unigram."""
    model = read_model(processor)
    spec = model.trainer_spec
    types = model.SentencePiece
    if spec.model_type not in (spec.UNIGRAM, spec.BPE):
        raise UserError("tokenizer.sampling_alpha needs a tokenizer of kind unigram or bpe")
    others = (piece for piece in model.pieces if piece.piece not in PLACEHOLDERS)
    if any(piece.type in (types.USER_DEFINED, types.UNUSED) for piece in others):
        raise UserError(
            "tokenizer.sampling_alpha cannot be used with a tokenizer that has other user-defined pieces than "
            "placeholders, or unused pieces"
        )
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == types.NORMAL}
    if any(SPACE in piece[1:] for piece in scores):
        raise UserError("tokenizer.sampling_alpha needs a tokenizer whose pieces contain spaces only at the beginning")
    is_bpe = spec.model_type == spec.BPE
    if is_bpe and alpha >= 1:
        raise UserError(f"tokenizer.sampling_alpha must be below 1 for a tokenizer of kind bpe, got {alpha}")
    return scores, is_bpe


def unigram_lattice(scores: Mapping[str, float], alpha: float) -> Callable[[str, Draw], list[str]]:
    """Returns a function that samples the pieces of a word by forward filtering and backward sampling."""
    longest = max(map(len, scores))
    unknown = min(scores.values()) - _UNKNOWN_PENALTY

    def lattice(word: str) -> list[tuple[list[int], list[float]]]:
        """Returns, for each end from 1 on, the starts of the pieces that end there, and cumulative probabilities."""
        columns = []
        totals = [0.0]  # for each end: log of the sum of exp(alpha * score) over all segmentations of word[:end]
        for end in range(1, len(word) + 1):
            starts = [start for start in range(max(0, end - longest), end) if word[start:end] in scores]
            if not starts or starts[-1] != end - 1:
                starts.append(end - 1)
            logs = [totals[start] + alpha * scores.get(word[start:end], unknown) for start in starts]
            highest = max(logs)
            weights = [math.exp(log - highest) for log in logs]
            total = sum(weights)
            totals.append(highest + math.log(total))
            columns.append((starts, list(itertools.accumulate(weight / total for weight in weights))))
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


def bpe_dropout(scores: Mapping[str, float], dropout: float) -> Callable[[str, Draw], tuple[str, ...]]:
    """Returns a function that samples the pieces of a word by merging characters; unknown characters stay single."""
    log_dropout = math.log(dropout) if dropout else -math.inf

    def merges(pieces: tuple[str, ...]) -> list[int]:
        """Returns the indices of pieces that can be merged with the next, by descending score, then left to right."""
        merged = [left + right for left, right in itertools.pairwise(pieces)]
        return sorted((i for i, piece in enumerate(merged) if piece in scores), key=lambda i: -scores[merged[i]])

    cached = functools.lru_cache(_CACHED_STATES)(merges)

    def split(word: str, draw: Draw) -> tuple[str, ...]:
        find_merges = cached if len(word) <= _CACHED_LENGTH else merges
        pieces = tuple(word)
        while candidates := find_merges(pieces):
            # The number of merges dropped before the first that is kept: at least n with probability dropout ** n.
            dropped = int(math.log(1.0 - draw()) / log_dropout)
            if dropped >= len(candidates):
                break
            i = candidates[dropped]
            pieces = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        return pieces

    return split
