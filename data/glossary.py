"""Glossaries: terms whose translations are given."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from lingua_flax.data.corpora.pair_files import read_tsv
from lingua_flax.host.errors import UserError

# Where words are written without spaces, every character counts as one.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = regex.compile(rf"[{UNSPACED}]|[[\p{{L}}\p{{M}}\p{{N}}_]--[{UNSPACED}]]+|\S", regex.V1)


@dataclass(frozen=True)
class Glossary:
    """Terms, each with its translation; they are found as whole words, and the longest at a place is taken.

    With `match_case`, a term must stand in the text in upper and lower case as it stands here.
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
                yield words[first].start(), words[last].end(), translation
            first = last + 1


def _words(text: str, *, match_case: bool) -> tuple[str, ...]:
    return tuple(_key(word, match_case=match_case) for word in WORD.findall(text))


def _key(word: str, *, match_case: bool) -> str:
    return word if match_case else word.casefold()


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
