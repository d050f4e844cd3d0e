"""What stands for a character that a tokenizer does not know: the nearest that it knows; what has none is kept."""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable

import regex

from lingua_flax.data.glossary import UNSPACED
from lingua_flax.data.placeholders import Protected, Span

# Of each of these, any may stand for another.
ALIKE: tuple[str, ...] = ("'’‘‚‛′ʼ´`", '"“”„‟«»″', "-‐‑‒–—―−", " \u00a0\u2002\u2003\u2007\u2009\u202f\u3000", "·•‣∙")
ALIKE += ("lł", "LŁ", "oø", "OØ", "dđð", "DĐÐ", "hħ", "iı")
_OTHERS = {character: group for group in ALIKE for character in group}
_CHARACTER = regex.compile(r"\X")
_WITH_ACCENT = regex.compile(r"([\p{Latin}\p{Greek}\p{Cyrillic}])\p{M}+")  # decomposed
_LETTER = regex.compile(rf"[[\p{{L}}\p{{N}}_]--[{UNSPACED}]]", regex.V1)
_PART_OF_ANOTHER = regex.compile(r"[\p{M}\p{Cc}\p{Cf}\p{Sk}\s]")
_RUN = regex.compile("[lLp]+|u[up]*")  # of the kinds of `_kind`


class NearestCharacters:
    """Writes texts in characters that a tokenizer knows, given whether it knows a text."""

    def __init__(self, is_known: Callable[[str], bool]):
        self._is_known = functools.lru_cache(1 << 16)(is_known)

    def protect(self, source: Protected) -> Protected:
        """Returns a source in the nearest characters, in which what has none is kept: a whole word, or signs."""
        characters = _CHARACTER.findall(source.source)
        written = "".join(own if self._is_known(own) else "".join(map(self._nearest, own)) for own in characters)
        taken = {place for span in source.spans for place in range(span.begin, span.end)}
        kinds = "".join(map(self._kinds, _CHARACTER.findall(written)))
        unknown = [
            Span(run.start(), run.end(), source.source[run.start() : run.end()], unknown=count)
            for run in _RUN.finditer(kinds)
            if (count := run[0].count("L") + run[0].count("u")) and taken.isdisjoint(range(*run.span()))
        ]
        return dataclasses.replace(source, written=written, spans=sorted([*source.spans, *unknown]))

    def _nearest(self, character: str) -> str:
        composed, decomposed = (unicodedata.normalize(form, character) for form in ("NFKC", "NFKD"))
        accented = _WITH_ACCENT.fullmatch(decomposed)
        likely = (*_OTHERS.get(character, ""), composed, accented[1] if accented else "", character.lower())
        return next((own for own in likely if len(own) == 1 and self._is_known(own)), character)

    def _kinds(self, characters: str) -> str:
        """Returns what each is: l for a letter, L if it is unknown, u for another unknown one, p, or a space."""
        is_known = self._is_known(characters)
        return "".join(_kind(character, is_known=is_known) for character in characters)


def _kind(character: str, *, is_known: bool) -> str:
    if _LETTER.match(character):
        return "l" if is_known else "L"
    if _PART_OF_ANOTHER.match(character):
        return " " if character.isspace() else "p"
    return " " if is_known else "u"
