"""What is mended in a pair, and the faults that it shows by itself."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import ftfy.fixes
import regex

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.options.language_codes import language_code
from lingua_flax.options.schema import CleaningOptions

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNLIKELY, LIKELY = 0.1, 0.5  # the probabilities of its language and of another one if a text is in that
ENOUGH = 120  # characters that tell a language; identification takes most of the time
CLEAR = 0.8  # the share of a sample that must agree on its language
SAME_DIGITS = 0.8  # the share that random numbers hardly have; of ten digits, half are the same by chance
MIN_SCRIPT = 0.05  # the share of the letters that makes a script one of the corpus
NAME_WORDS = 4  # at most, in what is taken for a name
_KANA = frozenset(("HIRAGANA", "KATAKANA"))
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*")
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_POINTS = re.compile("[\u0591-\u05c7\u064b-\u065f\u0670]")  # vowels of Hebrew and Arabic, which are mostly omitted
_DIGIT = re.compile(r"\d")
# Up to what is not ASCII or a top-level domain: words may follow directly (Chinese), or after a hyphen (Hungarian).
# Tokenizers of others divide http: / / example.org and info @ example.org.
_HOST = r"(?:https?\s?:\s?/\s?/\s?|www\.)(?:www\.)?([\w.-]*\.[a-z]+)"
_ADDRESS = re.compile(rf"{_HOST}|([\w.+-]+\s?@\s?[\w-]+(?:\.\w+)+)", re.ASCII | re.I)

# Mending.

_BREAKS = "br|p|div|li|ul|ol|td|th|tr|table|h[1-6]|hr|blockquote"
_INLINE = "a|abbr|b|big|center|cite|code|em|font|i|img|ins|del|mark|small|span|strong|strike|sub|sup|tt|u|s"
# With a value: "a <b and c> d" is text.
_ATTRIBUTE = r"""\s+[a-z][\w:.-]*\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+)"""
_TAG = re.compile(rf"</?(?:(?P<breaks>{_BREAKS})|{_INLINE})(?:{_ATTRIBUTE})*\s*/?>", re.IGNORECASE)
# Joiners without a width (U+200C, U+200D) stay: Persian, Indic scripts and emoji need them.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
_SPACES = re.compile(r"\s+")
STEPS: dict[str, Callable[[str], str]] = {  # by the option that turns a step off
    "mojibake": ftfy.fix_encoding,
    "tags": lambda text: _TAG.sub(lambda tag: " " if tag["breaks"] else "", text),
    "entities": ftfy.fixes.unescape_html,  # after tags: an escaped one is text
    "control_characters": lambda text: _CONTROL.sub("", text),
    "whitespace": lambda text: _SPACES.sub(" ", text).strip(),
    "normalize": lambda text: unicodedata.normalize("NFC", text),
}


def mend(text: str, options: CleaningOptions) -> tuple[str, list[str]]:
    """Returns a text after the steps that are not turned off, and the names of those that changed it."""
    changed = []
    for name, step in STEPS.items():
        before, text = text, step(text) if getattr(options, name) else text
        if text != before:
            changed.append(name)
    return text, changed


# Faults.


class Expected(NamedTuple):
    """What pairs are compared with: languages of py3langid, and the names of their scripts; if known."""

    options: CleaningOptions
    languages: Sequence[str]
    scripts: Sequence[frozenset[str]]


def expected_of(
    pairs: Sequence[Pair], options: CleaningOptions, languages: Sequence[str], notes: list[str]
) -> Expected:
    """Returns what the pairs of a corpus that begins with these should be like, and adds to the notes."""
    checked, scripts = [], []
    for side, language, sample in zip(Pair._fields, languages, zip(*pairs, strict=True), strict=True):
        texts = [mend(text, options)[0] for text in sample]
        scripts.append(frequent_scripts(texts))
        if not options.language:
            code = ""
        elif not (code := known_language(language) if language else frequent_language(texts)):
            notes.append(f"the {side} language, {language or 'which is not given'}, is unknown and not checked")
        elif not language:
            notes.append(f"the {side} language is {code}, judging by the first pairs")
        checked.append(code)
    return Expected(options, checked, scripts)


@functools.cache
def identifier() -> LanguageIdentifier:
    """Returns py3langid's model, which takes half a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@functools.lru_cache(maxsize=2)
def _language(text: str) -> str:
    return identifier().classify(_POINTS.sub("", text)[:ENOUGH])[0]


def known_language(language: str) -> str:
    """Returns the code of a language, such as en-GB, in py3langid; "" if it does not know it."""
    code = language_code(language)
    return code if code in identifier().labels else ""


def frequent_language(texts: Sequence[str]) -> str:
    """Returns the language that most texts are in; "" if they do not agree."""
    code, count = Counter(map(_language, texts)).most_common(1)[0]
    return code if count >= CLEAR * len(texts) else ""


@functools.cache
def _script(letter: str) -> str:
    """Returns the first word of a letter's name, which is that of its script, such as LATIN; CJK for Han."""
    letter = unicodedata.normalize("NFKC", letter)[0]  # full-width Latin letters are Latin, too
    return re.split("[ -]", unicodedata.name(letter, ""))[0]


def frequent_scripts(texts: Sequence[str]) -> frozenset[str]:
    """Returns the names of the scripts of these texts; none if they have no letters."""
    counts = Counter(map(_script, _LETTER.findall("".join(texts))))
    used = frozenset(name for name, count in counts.items() if count > MIN_SCRIPT * counts.total())
    return used if used.isdisjoint(_KANA) else used | _KANA | {"CJK"}


def are_swapped(pairs: Sequence[Pair], languages: Sequence[str]) -> bool:
    """Returns whether most of the pairs have their source in the language of the target, and the reverse."""
    known = [known_language(language) for language in languages]
    return sum(_is_swapped(pair, known) for pair in pairs) > len(pairs) / 2


def find_fault(pair: Pair, expected: Expected) -> str:
    """Returns the first of FAULTS that a pair has and whose check is not turned off, or ""."""
    checks = ((name, find) for name, find in FAULTS.items() if getattr(expected.options, name, True))
    return next((name for name, has_fault in checks if has_fault(pair, expected)), "")


def has_other_numbers(pair: Pair) -> bool:
    """Returns whether both sides have digits, without zeros, of which less than SAME_DIGITS are the same.

    35 million and 3500万 have the same; 2015 and พ.ศ. 2558, or 10 pm and 22 Uhr, do not, but may be good pairs.
    """
    first, second = (Counter(filter(None, map(int, _DIGIT.findall(text)))) for text in pair)
    same, total = (first & second).total(), first.total() + second.total()
    return bool(first and second) and 2 * same < SAME_DIGITS * total


def _has_letters(text: str, min_share: float) -> bool:
    return len(_LETTER.findall(text)) >= min_share * (len(text) - text.count(" "))


def _has_other_script(text: str, scripts: frozenset[str]) -> bool:
    return bool(scripts and scripts.isdisjoint(map(_script, filter(str.isalpha, text))) and _LETTER.search(text))


def _is_swapped(pair: Pair, languages: Sequence[str]) -> bool:
    source, target = languages
    return "" != source != target != "" and [*map(_language, pair)] == [target, source]


def _has_other_language(text: str, language: str) -> bool:
    if language in ("", _language(text)):
        return False  # in half the time that the probabilities of all languages take
    probabilities = dict(identifier().rank(_POINTS.sub("", text)[:ENOUGH]))
    return probabilities[language] <= UNLIKELY and max(probabilities.values()) >= LIKELY


def _is_name(text: str) -> bool:
    words = _WORD.findall(text)
    return 0 < len(words) <= NAME_WORDS and all(word[0].isupper() for word in words)


def _addresses(text: str) -> Counter[str]:
    return Counter(re.sub(r"\s", "", "".join(found).casefold()) for found in _ADDRESS.findall(text))


FAULTS: dict[str, Callable[[Pair, Expected], bool]] = {  # mostly by the option that turns a check off
    "empty": lambda pair, expected: not all(pair),
    "undecodable": lambda pair, expected: any("\ufffd" in text for text in pair),
    "max_length": lambda pair, expected: max(map(len, pair)) > expected.options.max_length,
    "min_letters": lambda pair, expected: not all(_has_letters(text, expected.options.min_letters) for text in pair),
    "identical": lambda pair, expected: pair[0].casefold() == pair[1].casefold() and not all(map(_is_name, pair)),
    "script": lambda pair, expected: any(map(_has_other_script, pair, expected.scripts)),
    "swapped": lambda pair, expected: _is_swapped(pair, expected.languages),
    "language": lambda pair, expected: any(map(_has_other_language, pair, expected.languages)),
    "addresses": lambda pair, expected: _addresses(pair[0]) != _addresses(pair[1]),
}
