"""The words that the training text had on the source side, and those of another text that it never had.

Pieces are no proof that a network knows a word, since any word can be written with some. So the words of all training
pairs are counted when a run starts, and kept beside its tokenizer, sorted, so that a word is looked up in the file as
it is, in 20 microseconds, and nothing has to be loaded.
"""

import bisect
import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import regex

from lingua_flax.data.corpora import prepared_corpus
from lingua_flax.data.corpora.corpus import PairSource
from lingua_flax.data.glossary import WORD, Glossary
from lingua_flax.data.placeholders import spans_to_keep
from lingua_flax.data.text_files import chunks, unreadable_as_user_error
from lingua_flax.host.digests import json_digest

WORDS_NAME = "words.tsv"
MIN_UNKNOWN = 2  # words of a sentence of which most are unknown; a single one is marked, which says enough
_FORMAT = 1  # part of the cache key
_COUNTED_AT_ONCE = 1 << 16  # lines
_LOOKED_UP = regex.compile(r"(?=.*\p{L})\P{N}+", regex.DOTALL)  # but not numbers, punctuation and codes such as MP3
_REMEMBERED = 1 << 16  # words


class UnknownWords(NamedTuple):
    """Where in a text each word is that the training text never had, as characters [begin, end)."""

    places: Sequence[tuple[int, int]] = ()
    are_most: bool = False  # more than half of the words of the text, and at least MIN_UNKNOWN


class KnownWords:
    """The words of a training text, given as in the file: word, tab and count on each line, sorted by words."""

    def __init__(self, tsv: bytes):
        self.tsv = tsv
        self._is_unknown = functools.lru_cache(_REMEMBERED)(self._look_up)

    @classmethod
    def load(cls, workdir: Path) -> Self:
        """Returns the words of a run; raises UserError if the file cannot be read."""
        path = workdir / WORDS_NAME
        with unreadable_as_user_error(path):
            return cls(path.read_bytes())

    @property
    def counts(self) -> Counter[str]:
        """How often the training text had each word."""
        lines = (line.split("\t") for line in self.tsv.decode().splitlines())
        return Counter({word: int(count) for word, count in lines})

    def unknown_in(self, text: str, glossary: Glossary | None = None) -> UnknownWords:
        """Returns the unknown words of a text, of which terms of a glossary and what stays as it is are none.

        Words are letters and marks without anything between them. Upper and lower case do not matter. Where words are
        written without spaces, every character is looked up by itself.
        """
        if not any(map(self._is_unknown, WORD.findall(text))):
            return UnknownWords()
        for begin, end, *_ in spans_to_keep(text, glossary):
            text = text[:begin] + " " * (end - begin) + text[end:]
        words = [word for word in WORD.finditer(text) if _key(word[0])]
        places = [word.span() for word in words if self._is_unknown(word[0])]
        return UnknownWords(places, len(places) >= MIN_UNKNOWN and 2 * len(places) > len(words))

    def _look_up(self, word: str) -> bool:
        key = _key(word).encode()
        place = bisect.bisect_left(range(len(self.tsv)), key, key=self._word_at)
        return bool(key) and (place == len(self.tsv) or self._word_at(place) != key)

    def _word_at(self, place: int) -> bytes:
        """Returns the word of the line in which a byte of the file is."""
        begin = self.tsv.rfind(b"\n", 0, place) + 1
        return self.tsv[begin : self.tsv.find(b"\t", begin)]


def _key(word: str) -> str:
    """Returns a word without regard to case and to how its characters are composed, "" for what is not looked up.

    Turkish has a letter ı of its own, whose capital is I: after both changes, either is i.
    """
    return unicodedata.normalize("NFKC", word).upper().lower() if _LOOKED_UP.fullmatch(word) else ""


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Returns how often lines have each word."""
    counts: Counter[str] = Counter()
    for some in chunks(lines, _COUNTED_AT_ONCE):
        between_spaces: Counter[str] = Counter()  # first, since that takes a quarter of the time
        for line in some:
            between_spaces.update(line.split())
        for text, count in between_spaces.items():
            for word in WORD.findall(text):
                counts[word] += count
    folded: Counter[str] = Counter()
    for word, count in counts.items():
        folded[_key(word)] += count
    del folded[""]
    return folded


def known_words(counts: Iterable[Counter[str]]) -> KnownWords:
    """Returns the words of several texts."""
    total = sum(counts, Counter[str]())
    return KnownWords("".join(f"{word}\t{total[word]}\n" for word in sorted(total)).encode())


def source_words(pairs: PairSource, fingerprint: str, cache: Path) -> KnownWords:
    """Returns the words of the sources of the corpus with this fingerprint, which are counted once and cached.

    Raises the errors of `prepared_corpus.prepare`, and UserError if what is cached cannot be read.
    """

    def write(folder: Path) -> None:
        words = known_words([count_words(source for source, _ in pairs)])
        (folder / WORDS_NAME).write_bytes(words.tsv)

    return KnownWords.load(prepared_corpus.prepare(cache, "words", json_digest([_FORMAT, fingerprint]), write))
