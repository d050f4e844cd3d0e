"""Training pairs that are not the same in every epoch: with changes of their text, and in sampled segmentations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingua_flax.data.corpora.corpus import Pair, PairSource
from lingua_flax.data.subword_sampling import SubwordSampler
from lingua_flax.data.text_changes import change_pair, draw_changes
from lingua_flax.data.tokenized_pairs import TokenizedPairs
from lingua_flax.data.tokenizer import Tokenizer, add_special_ids


class Variants(NamedTuple):
    """Variants of some of the pairs that were drawn: which of the draws, [n] int64, and their ids on both sides."""

    draws: np.ndarray
    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]


class VariedPairs:
    """Variants of training pairs, a function of random keys; pickled without the caches of its samplers."""

    def __init__(
        self,
        pairs: TokenizedPairs,
        text: PairSource,
        tokenizer: Tokenizer,
        max_length: int,
        fractions: Sequence[float],
        alpha: float,
    ):
        """Takes pairs of `text`, tokenized by `tokenizer`; no side is longer than `max_length` tokens.

        `fractions` are those of the pairs with each of the CHANGES; with `alpha` above 0, segmentations are sampled.
        Raises UserError if those of this kind of tokenizer cannot be.
        """
        self._arguments = (pairs, text, tokenizer, max_length, fractions, alpha)
        self._pairs, self._text, self._tokenizer, self._max_length, self._fractions, _ = self._arguments
        source = SubwordSampler(tokenizer.source, alpha) if alpha else None
        is_joint = tokenizer.target is tokenizer.source
        target = source if is_joint or not alpha else SubwordSampler(tokenizer.target, alpha)
        self._samplers = (source, target) if source and target else None

    def __reduce__(self) -> tuple[Any, ...]:
        return VariedPairs, self._arguments

    @property
    def samples(self) -> bool:
        """Whether segmentations are sampled, which takes far longer than packing."""
        return self._samplers is not None

    def draw(self, indices: np.ndarray, keys: np.ndarray) -> Variants:
        """Returns the variants of those of the pairs that do not stay as they are, given the key of each draw, uint64.

        A pair with a side that would be longer than the maximum stays as it is in the corpus.
        """
        changes = draw_changes(self._fractions, keys)
        draws = np.arange(len(keys)) if self.samples else np.flatnonzero(changes.any(axis=1))
        positions = self._pairs.positions(indices[draws])
        chosen = zip(positions.tolist(), changes[draws].tolist(), strict=True)
        texts = [change_pair(self._text[position], of_pair) for position, of_pair in chosen]
        sources, targets = self._encode(texts, keys[draws])
        fits = [max(map(len, sides)) <= self._max_length for sides in zip(sources, targets, strict=True)]
        return Variants(draws[fits], *(list(itertools.compress(side, fits)) for side in (sources, targets)))

    def _encode(self, pairs: Sequence[Pair], keys: np.ndarray) -> tuple[list[list[int]], list[list[int]]]:
        if not self._samplers:
            return self._tokenizer.encode_pairs(pairs)
        source, target = self._samplers
        sources, targets = [], []
        for pair, key in zip(pairs, keys.tolist(), strict=True):
            rng = np.random.Generator(np.random.Philox(key=key))
            text = self._tokenizer.protect_pair(*pair)
            sources.append(add_special_ids(source.sample(text.source, rng), self._tokenizer.source_tags))
            targets.append(add_special_ids(target.sample(text.target, rng)))
        return sources, targets
