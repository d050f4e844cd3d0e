"""Why a pair is left out, as far as the pair itself tells; what only the corpus tells is in corpus_filters.py."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import regex

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.options.schema import CleaningOptions

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNLIKELY = 0.1  # the probability of its language below which a text is in another one
CLEAR = 0.8  # the share of a sample that must agree on its language
SCRIPTS = "Latin Cyrillic Greek Arabic Hebrew Devanagari Bengali Thai Georgian Armenian Han Hiragana Katakana Hangul"
MIN_SCRIPT = 0.05  # the share of the letters that makes a script one of the corpus
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_VISIBLE = re.compile(r"\S")
_NUMBER = re.compile(r"\d\d+")
_ADDRESS = re.compile(r"(?:https?://|www\.)(?:www\.)?([\w.-]*\w)|([\w.+-]+@[\w-]+(?:\.\w+)+)", re.IGNORECASE)
_ALIASES = {"nb": "no", "iw": "he", "in": "id"}


class Expected(NamedTuple):
    """What pairs are compared with.

    Attributes:
      languages: of source and target, as py3langid calls them; "" is not checked.
      scripts: patterns that find a letter of the scripts of source and target; "" is not checked.
    """

    languages: tuple[str, str] = ("", "")
    scripts: tuple[str, str] = ("", "")


def expect(pairs: Sequence[Pair], languages: Sequence[str], options: CleaningOptions) -> tuple[Expected, list[str]]:
    """Returns what the pairs of a corpus that begins with these should be like, and notes on what is not checked.

    A language that is not given, "", is the one of most of these pairs, if there is one.
    """
    notes: list[str] = []
    sides = list(zip(*pairs, strict=True))
    checked = [
        _checked_language(language, texts, name, notes) if options.language else ""
        for language, texts, name in zip(languages, sides, ("source", "target"), strict=True)
    ]
    scripts = [_scripts(texts) if options.script else "" for texts in sides]
    return Expected((checked[0], checked[1]), (scripts[0], scripts[1])), notes


def _checked_language(language: str, texts: Sequence[str], side: str, notes: list[str]) -> str:
    code = re.split("[-_]", language.lower())[0]
    code = _ALIASES.get(code, code)
    if not language:
        code, count = Counter(identifier().classify(text)[0] for text in texts).most_common(1)[0]
        if count < CLEAR * len(texts):
            notes.append(f"the language of the {side} side is not clear, so it is not checked: give --{side}-language")
            return ""
        notes.append(f"the {side} side is in {code}, judging by its first lines")
    elif code not in identifier().labels:
        notes.append(f"the language of the {side} side, {language}, is not known to py3langid, so it is not checked")
        return ""
    return code


def _scripts(texts: Sequence[str]) -> str:
    text = "".join(texts)
    counts = {name: len(regex.findall(rf"\p{{{name}}}", text)) for name in SCRIPTS.split()}
    used = [name for name, count in counts.items() if count > MIN_SCRIPT * sum(counts.values())]
    return "[" + "".join(rf"\p{{{name}}}" for name in used) + "]" if used else ""


@functools.cache
def identifier() -> LanguageIdentifier:
    """Returns py3langid's model, which takes half a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def find_fault(pair: Pair, options: CleaningOptions, expected: Expected) -> str:
    """Returns the first of FAULTS that a pair has, or ""."""
    return next((name for name, has_fault in FAULTS.items() if has_fault(pair, options, expected)), "")


def _has_few_letters(pair: Pair, options: CleaningOptions, _: Expected) -> bool:
    return any(len(_LETTER.findall(text)) < options.min_letters * len(_VISIBLE.findall(text)) for text in pair)


def _has_another_script(pair: Pair, _: CleaningOptions, expected: Expected) -> bool:
    sides = zip(pair, expected.scripts, strict=True)
    return any(script and not regex.search(script, text) and _LETTER.search(text) for text, script in sides)


def _is_swapped(pair: Pair, options: CleaningOptions, expected: Expected) -> bool:
    if not all(expected.languages) or len(set(expected.languages)) == 1:
        return False
    return [identifier().classify(text)[0] for text in pair] == list(reversed(expected.languages))


def _has_another_language(pair: Pair, _: CleaningOptions, expected: Expected) -> bool:
    return any(
        language and not _may_be(text, language) for text, language in zip(pair, expected.languages, strict=True)
    )


def _may_be(text: str, language: str) -> bool:
    """Returns whether a text is in a language, or too short to tell."""
    if identifier().classify(text)[0] == language:
        return True  # twice as fast as the probabilities of all languages
    return dict(identifier().rank(text))[language] > UNLIKELY


def _has_other_numbers(pair: Pair, options: CleaningOptions, _: Expected) -> bool:
    if not options.numbers:
        return False
    first, second = (Counter(int(number) for number in _NUMBER.findall(text)) for text in pair)
    return bool(first and second) and 4 * (first & second).total() < first.total() + second.total()


def _has_other_addresses(pair: Pair, options: CleaningOptions, _: Expected) -> bool:
    if not options.addresses:
        return False
    first, second = (Counter("".join(found).casefold() for found in _ADDRESS.findall(text)) for text in pair)
    return first != second


FAULTS: dict[str, Callable[[Pair, CleaningOptions, Expected], object]] = {
    "empty": lambda pair, options, expected: not all(pair),
    "undecodable": lambda pair, options, expected: any("\ufffd" in text for text in pair),
    "max_length": lambda pair, options, expected: 0 < options.max_length < max(map(len, pair)),
    "min_letters": _has_few_letters,
    "identical": lambda pair, options, expected: options.identical and pair[0].casefold() == pair[1].casefold(),
    "script": _has_another_script,
    "swapped": _is_swapped,
    "language": _has_another_language,
    "numbers": _has_other_numbers,
    "addresses": _has_other_addresses,
}
