"""Changes that users make to clean text, for training on them and for measuring what they cost."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.draw_order import random_words
from lingua_flax.data.placeholders import PLACEHOLDERS, replaced, spans_to_keep
from lingua_flax.options.language_codes import language_code

_WORD_BEGINNING = re.compile(r"(?<!\w)(?<!\w['’])\w")  # not the t of "don't"
_FINAL_PUNCTUATION = re.compile(r"(?<=[^\s.!?…。！？．｡।؟۔])\s*[.!?…。！？．｡।؟۔]+\s*$")
_SPAN = PLACEHOLDERS[0]


def no_final_punctuation(text: str) -> str:
    """Returns the text without full stops, question and exclamation marks at its end; never an empty one."""
    return _FINAL_PUNCTUATION.sub("", text)


AUGMENTATIONS: Mapping[str, Callable[[str, str], str]] = {  # by option of [data.augment], in order
    "upper_case": lambda text, i: text.replace("i", i).upper(),
    "title_case": lambda text, i: _WORD_BEGINNING.sub(lambda match: match[0].replace("i", i).title(), text),
    "no_final_punctuation": lambda text, i: no_final_punctuation(text),
}


def augmented(text: str, name: str, language: str) -> str:
    """Returns a text with one of the AUGMENTATIONS; what a translation must contain as it is stays as it is."""
    spans = spans_to_keep(text)
    i = "İ" if language_code(language) in ("tr", "az", "crh", "gag") else "i"  # where I is the capital of ı
    changed = AUGMENTATIONS[name](replaced(text, spans, _SPAN * len(spans)), i)
    kept = iter(spans)
    return re.sub(_SPAN, lambda _: next(kept).kept, changed)


def draw_augmentations(fractions: Mapping[str, float], keys: np.ndarray) -> np.ndarray:
    """Returns which AUGMENTATIONS pairs have, drawn with these probabilities by their uint64 keys: [pairs, changes]."""
    limits = np.array([fractions[name] for name in AUGMENTATIONS]) * 2.0**64
    return random_words(keys[:, None], np.arange(len(limits))) < limits


def augment_pair(pair: Pair, chosen: Sequence[bool], languages: tuple[str, str]) -> Pair:
    """Returns the pair in these languages with the chosen AUGMENTATIONS on both sides."""
    for name in itertools.compress(AUGMENTATIONS, chosen):
        pair = Pair(*(augmented(text, name, language) for text, language in zip(pair, languages, strict=True)))
    return pair
