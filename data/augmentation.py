"""Changes that users make to clean text, for training on them and for measuring what they cost."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.draw_order import random_words

_WORD_BEGINNING = re.compile(r"(?<!\w)(?<!\w['’])\w")  # not the t of "don't"
_FINAL_PUNCTUATION = re.compile(r"(?<=[^\s.!?…。！？．｡।؟۔])\s*[.!?…。！？．｡।؟۔]+\s*$")


def no_final_punctuation(text: str) -> str:
    """Returns the text without full stops, question and exclamation marks at its end; never an empty one."""
    return _FINAL_PUNCTUATION.sub("", text)


AUGMENTATIONS: Mapping[str, Callable[[str], str]] = {  # by option of [data.augment], in order
    "upper_case": str.upper,
    "title_case": lambda text: _WORD_BEGINNING.sub(lambda match: match[0].title(), text),
    "no_final_punctuation": no_final_punctuation,
}


def draw_augmentations(fractions: Mapping[str, float], keys: np.ndarray) -> np.ndarray:
    """Returns which AUGMENTATIONS pairs have, drawn with these probabilities by their uint64 keys: [pairs, changes]."""
    limits = np.array([fractions[name] for name in AUGMENTATIONS]) * 2.0**64
    return random_words(keys[:, None], np.arange(len(limits))) < limits


def augment_pair(pair: Pair, chosen: Sequence[bool]) -> Pair:
    """Returns the pair with the chosen AUGMENTATIONS on both sides."""
    for change, is_chosen in zip(AUGMENTATIONS.values(), chosen, strict=True):
        pair = Pair(*map(change, pair)) if is_chosen else pair
    return pair
