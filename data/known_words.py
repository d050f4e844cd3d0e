"""The words that the training text had on the source side, and those of another text that it never had.

Pieces are no proof: any word can be written with some. The words are kept beside the tokenizer, sorted, so that one is
looked up in the file as it is, in 10 microseconds, and nothing has to be loaded.
"""

import bisect
import functools
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import regex

from lingua_flax.data.glossary import WORD, without_case
from lingua_flax.data.placeholders import Span, replaced, spans_to_keep
from lingua_flax.data.text_files import chunks, unreadable_as_user_error

WORDS_NAME = "words.tsv"
_LOOKED_UP = regex.compile(r"(?=.*\p{L})\P{N}{1,100}", regex.DOTALL)  # not numbers, punctuation, codes such as MP3


class UnknownWords(NamedTuple):
    """Where the unknown words of a text are, [begin, end); and if they are more than half of all, and at least two."""

    places: Sequence[tuple[int, int]] = ()
    are_most: bool = False


class KnownWords:
    """The words of a training text, as in the file: word, tab and count on each line, sorted by code points."""

    def __init__(self, tsv: bytes):
        self.tsv = tsv
        self._is_unknown = functools.lru_cache(1 << 16)(self._look_up)

    @classmethod
    def load(cls, workdir: Path) -> Self:
        """Returns the words of a run; raises UserError if the file cannot be read."""
        with unreadable_as_user_error(path := workdir / WORDS_NAME):
            return cls(path.read_bytes())

    @property
    def counts(self) -> Counter[str]:
        """How often the training text had each word."""
        return Counter({word: int(n) for word, n in (line.split("\t") for line in self.tsv.decode().splitlines())})

    def unknown_in(self, text: str, spans: Sequence[Span] | None = None) -> UnknownWords:
        """Returns the unknown words of a text; spans, by default all that `spans_to_keep` finds, are not words.

        A word is letters and marks without anything between them, in upper or lower case, and in scripts without
        spaces a single character.
        """
        if not any(map(self._is_unknown, WORD.findall(text))):
            return UnknownWords()
        spans = spans_to_keep(text) if spans is None else spans
        text = replaced(text, spans, [" " * (span.end - span.begin) for span in spans])
        words = [word for word in WORD.finditer(text) if _key(word[0])]
        places = [word.span() for word in words if self._is_unknown(word[0])]
        return UnknownWords(places, len(places) > max(1, len(words) / 2))

    def _look_up(self, word: str) -> bool:
        key = _key(word).encode()
        place = bisect.bisect_left(range(len(self.tsv)), key, key=self._word_at)
        return bool(key) and (place == len(self.tsv) or self._word_at(place) != key)

    def _word_at(self, place: int) -> bytes:
        """Returns the word of the line in which a byte of the file is."""
        begin = self.tsv.rfind(b"\n", 0, place) + 1
        return self.tsv[begin : self.tsv.find(b"\t", begin)]


def _key(word: str) -> str:
    """Returns a word regardless of case and composition, "" for what is not looked up."""
    return without_case(unicodedata.normalize("NFKC", word)) if _LOOKED_UP.fullmatch(word) else ""


def known_words(lines: Iterable[str], others: Mapping[str, int] | None = None) -> KnownWords:
    """Returns the words of lines, and others with their counts."""
    total = Counter(others)
    for some in chunks(lines, 1 << 16):
        # Divided at spaces and counted first, since that takes a quarter of the time.
        for text, count in Counter(itertools.chain.from_iterable(map(str.split, some))).items():
            for word in WORD.findall(text):
                total[_key(word)] += count
    del total[""]
    return KnownWords("".join(f"{word}\t{total[word]}\n" for word in sorted(total)).encode())
