"""Training pairs that are not the same in every epoch: with changes of their text, and in sampled segmentations."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lingua_flax.data.augmentation import augment_pair, draw_augmentations
from lingua_flax.data.corpora.corpus import Pair, PairSource
from lingua_flax.data.placeholders import protect_pair
from lingua_flax.data.subword_sampling import SubwordSampler
from lingua_flax.data.tokenized_pairs import TokenizedPairs
from lingua_flax.data.tokenizer import Tokenizer, add_special_ids

Ids = list[list[int]]


@dataclass(frozen=True)
class AugmentedPairs:
    """Variants of training pairs, a function of random keys.

    `pairs` are those of `text` with up to `max_length` tokens a side, `fractions` of which have each of the
    AUGMENTATIONS; their segmentations are sampled if there are samplers of source and target.
    """

    pairs: TokenizedPairs
    text: PairSource
    languages: tuple[str, str]
    tokenizer: Tokenizer
    max_length: int
    fractions: Mapping[str, float]
    samplers: tuple[SubwordSampler, SubwordSampler] | None

    def draw(self, indices: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, Ids, Ids]:
        """Returns which of these draws, with uint64 keys, differ from the corpus, and their ids; none is too long."""
        changes = draw_augmentations(self.fractions, keys)
        draws = np.arange(len(keys)) if self.samplers else np.flatnonzero(changes.any(axis=1))
        positions = self.pairs.positions(indices[draws])
        chosen = zip(positions.tolist(), changes[draws].tolist(), strict=True)
        texts = [augment_pair(self.text[position], of_pair, self.languages) for position, of_pair in chosen]
        sources, targets = self._sample(texts, keys[draws]) if self.samplers else self.tokenizer.encode_pairs(texts)
        fits = [max(map(len, sides)) <= self.max_length for sides in zip(sources, targets, strict=True)]
        return draws[fits], list(itertools.compress(sources, fits)), list(itertools.compress(targets, fits))

    def _sample(self, pairs: Sequence[Pair], keys: np.ndarray) -> tuple[Ids, Ids]:
        assert self.samplers
        sources, targets = Ids(), Ids()
        source, target = self.samplers
        for pair, key in zip(pairs, keys.tolist(), strict=True):
            rng = np.random.Generator(np.random.Philox(key=key))
            text = protect_pair(pair, self.tokenizer.placeholders)
            sources.append(add_special_ids(source.sample(text.source, rng), self.tokenizer.source_tags))
            targets.append(add_special_ids(target.sample(text.target, rng)))
        return sources, targets
