"""Splitting text into words, and grouping the pieces of a tokenized sentence into words."""

import bisect
import re
from collections.abc import Sequence
from typing import NamedTuple

import regex

from lingua_flax.data.tokenizer import CONTROL_PIECES, SPACE, Characters

# SentencePiece keeps or drops these control characters, whereas Python considers them spaces.
WORD = re.compile(r"[\S\v\x1c-\x1f\x85]+")
LETTER = regex.compile(r"[\p{L}\p{M}\p{N}]")  # of words: also a mark, such as a vowel sign, and a digit


class Word(NamedTuple):
    """A word, or a run of punctuation, and the positions of its tokens."""

    text: str
    positions: tuple[int, ...]


def split_words(text: str) -> list[Characters]:
    """Returns the words of a text: what is between the characters that SentencePiece considers spaces."""
    return [Characters(*word.span()) for word in WORD.finditer(text)]


def word_at(words: Sequence[Characters], token: Characters) -> int:
    """Returns the number of the word in which a token begins, counted from 0; a space belongs to the word after it."""
    index = bisect.bisect_right(words, token.begin, key=lambda word: word.end)
    return min(index, max(0, len(words) - 1))


def is_part_of_word(text: str, words: Sequence[Characters], token: Characters) -> bool:
    """Returns whether a token is anything but punctuation that is attached to a word."""
    own, word = text[slice(*token)].strip(), words[word_at(words, token)] if words else token
    return not own or bool(LETTER.search(own)) or not LETTER.search(text[slice(*word)])


def group_pieces(pieces: Sequence[str]) -> list[Word]:
    """Groups the pieces of a sentence into words: ▁a cross ▁the ▁river . </s> -> across, the, river, ., </s>.

    A word begins after a space, between a letter, mark or digit and any other, and before and after a control token.
    """
    words: list[Word] = []
    for position, piece in enumerate(pieces):
        text = piece.replace(SPACE, " ").strip()
        word = words[-1] if words else None
        if (
            word is None
            or piece.startswith(SPACE)
            or piece in CONTROL_PIECES
            or word.text in CONTROL_PIECES
            or (word.text and text and bool(LETTER.match(word.text[-1])) != bool(LETTER.match(text)))
        ):
            words.append(Word(text, (position,)))
        else:
            words[-1] = Word(word.text + text, (*word.positions, position))
    return words
