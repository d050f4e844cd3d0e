"""Changes that users make to clean text, for training on them and for measuring what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from lingua_flax.data.corpora.corpus import Pair, PairSource
from lingua_flax.data.draw_order import random_words

_WORD_BEGINNING = re.compile(r"(?<!\w)(?<!\w['’])\w")  # not the t of "don't"
_FINAL_PUNCTUATION = re.compile(r"(?<=[^\s.!?…。！？．｡।؟۔])\s*[.!?…。！？．｡।؟۔]+\s*$")


def title_case(text: str) -> str:
    """Returns the Text With Every Word Capitalized, and the other letters as they are."""
    return _WORD_BEGINNING.sub(lambda match: match[0].title(), text)


def no_final_punctuation(text: str) -> str:
    """Returns the text without full stops, question and exclamation marks at its end; never an empty one."""
    return _FINAL_PUNCTUATION.sub("", text)


# In the order in which they are applied; named like the options of [data.augment].
CHANGES: Mapping[str, Callable[[str], str]] = {
    "upper_case": str.upper,
    "title_case": title_case,
    "no_final_punctuation": no_final_punctuation,
}


def draw_changes(fractions: Sequence[float], keys: np.ndarray) -> np.ndarray:
    """Returns which of the CHANGES, drawn independently with these probabilities, a pair has: bool [pairs, changes].

    `keys`, uint64 [pairs], determine them.
    """
    return random_words(keys[:, None], np.arange(len(fractions))) < np.array(fractions) * 2.0**64


def change_pair(pair: Pair, chosen: Sequence[bool]) -> Pair:
    """Returns the pair with the chosen CHANGES on both sides."""
    for change, is_chosen in zip(CHANGES.values(), chosen, strict=True):
        pair = Pair(*map(change, pair)) if is_chosen else pair
    return pair


class ChangedPairs:
    """Pairs with CHANGES of some of them, always the same ones."""

    def __init__(self, pairs: PairSource, fractions: Sequence[float]):
        self._pairs, self._fractions = pairs, fractions

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Pair:
        (chosen,) = draw_changes(self._fractions, random_words(index))
        return change_pair(self._pairs[index], chosen)

    def __iter__(self) -> Iterator[Pair]:
        return map(self.__getitem__, range(len(self)))
