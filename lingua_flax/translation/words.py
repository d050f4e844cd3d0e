"""Splitting text into words, and grouping the pieces of a tokenized sentence into words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from lingua_flax.data.tokenizer import CONTROL_PIECES, SPACE

BYTES_OF_SPACES = ("<0x0A>", "<0x0D>", "<0x20>")  # pieces that are decoded as a space
# SentencePiece keeps or drops these control characters, whereas Python considers them spaces.
WORD = re.compile(r"[\S\v\x1c-\x1f\x85]+")


class Word(NamedTuple):
    """A word, or a run of punctuation, and the positions of its tokens."""

    text: str
    positions: tuple[int, ...]


def split_words(text: str) -> list[str]:
    """Returns the words of a text: what is between the characters that SentencePiece considers spaces."""
    return WORD.findall(text)


def word_indices(pieces: Sequence[str]) -> list[int]:
    """Returns the number of the word that each piece belongs to, if words are what spaces separate, counted from 0.

    A piece that is only a space belongs to the word that follows.
    """
    indices = []
    word, in_word = -1, False
    for piece in pieces:
        text = " " if piece in BYTES_OF_SPACES else piece.replace(SPACE, " ")
        if text.startswith(" "):
            in_word = False
        indices.append(word if in_word else word + 1)
        if words := split_words(text):
            word = indices[-1] + len(words) - 1
            in_word = not text.endswith(" ")
    return indices


def is_part_of_word(pieces: Sequence[str]) -> list[bool]:
    """Returns for each piece whether it is anything but punctuation that is attached to a word."""
    indices = word_indices(pieces)
    words = {index for index, piece in zip(indices, pieces, strict=True) if any(map(str.isalnum, piece))}
    return [index not in words or not _is_punctuation(piece) for index, piece in zip(indices, pieces, strict=True)]


def _is_punctuation(piece: str) -> bool:
    text = piece.replace(SPACE, "")
    return bool(text) and not any(map(str.isalnum, text))


def group_pieces(pieces: Sequence[str]) -> list[Word]:
    """Groups the pieces of a sentence into words: ▁a cross ▁the ▁river . </s> -> across, the, river, ., </s>.

    A word begins after a space, between an alphanumeric character and any other, and before and after a control token.
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
            or (word.text and text and word.text[-1].isalnum() != text[0].isalnum())
        ):
            words.append(Word(text, (position,)))
        else:
            words[-1] = Word(word.text + text, (*word.positions, position))
    return words
