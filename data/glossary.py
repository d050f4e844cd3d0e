"""Glossaries: terms whose translations are given."""

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from lingua_flax.data.corpora.pair_files import read_tsv
from lingua_flax.host.errors import UserError

# Where words are written without spaces, every character counts as one.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = regex.compile(rf"[{UNSPACED}]|[[\p{{L}}\p{{M}}\p{{N}}_]--[{UNSPACED}]]+|\S", regex.V1)
_CHARACTER = regex.compile(r"\X")
MOST_MARKS = 20  # of a character that is composed: Python sorts marks in quadratic time


@dataclass(frozen=True)
class Glossary:
    """Terms, each with its translation; they are found as whole words, and the longest at a place is taken.

    Composed, decomposed and full-width characters are the same. With `match_case`, a term must stand in the text in
    upper and lower case as it stands here.
    """

    terms: tuple[tuple[str, str], ...]
    match_case: bool = False

    @functools.cached_property
    def _terms(self) -> dict[str, Any]:
        """The terms as a tree: the words that may follow each word; after the last one, the translation by ""."""
        tree: dict[str, Any] = {}
        for term, translation in self.terms:
            branch = tree
            for word in _words(term, match_case=self.match_case):
                branch = branch.setdefault(word, {})
            branch[""] = translation
        return tree

    def terms_in(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yields where each term in a text begins and ends, and its translation."""
        text, begins, ends = _composed(text)
        words = list(WORD.finditer(text))
        keys = [_key(word[0], match_case=self.match_case) for word in words]
        first = 0
        while first < len(words):
            branch, last, translation = self._terms, first, ""
            for place in range(first, len(words)):
                branch = branch.get(keys[place], {})
                if "" in branch:
                    last, translation = place, branch[""]
                elif not branch:
                    break
            if translation:
                yield begins[words[first].start()], ends[words[last].end() - 1], translation
            first = last + 1


def _composed(text: str) -> tuple[str, Sequence[int], Sequence[int]]:
    """Returns a text in NFKC, and where what its characters come from begins and ends in the text."""
    if text.isascii():
        return text, range(len(text)), range(1, len(text) + 1)
    pieces, begins, ends = [], list[int](), list[int]()
    for match in _CHARACTER.finditer(text):
        pieces.append(unicodedata.normalize("NFKC", match[0]) if len(match[0]) <= MOST_MARKS else match[0])
        begins += [match.start()] * len(pieces[-1])
        ends += [match.end()] * len(pieces[-1])
    return "".join(pieces), begins, ends


def _words(text: str, *, match_case: bool) -> tuple[str, ...]:
    return tuple(_key(word, match_case=match_case) for word in WORD.findall(_composed(text)[0]))


def _key(word: str, *, match_case: bool) -> str:
    return word if match_case else without_case(word)


def without_case(word: str) -> str:
    """Returns a word regardless of case, also of the Turkish İ and ı."""
    return word.upper().lower().replace("i̇", "i")


def read_glossary(path: Path, *, match_case: bool = False) -> Glossary:
    """Returns the glossary in a TSV file; raises UserError if a line lacks a side or a term has two translations."""
    lines: dict[tuple[str, ...], tuple[str, int]] = {}
    terms = []
    for number, pair in enumerate(read_tsv(path), start=1):
        term, translation = (side.strip() for side in pair)
        if not term or not translation:
            raise UserError(f"{path}, line {number}: a term and its translation are needed, term<TAB>translation")
        other, line = lines.setdefault(_words(term, match_case=match_case), (translation, number))
        if other != translation:
            raise UserError(f'{path}, line {number}: "{term}" has another translation in line {line}; remove one')
        terms.append((term, translation))
    return Glossary(tuple(terms), match_case)
