"""Grouping the pieces of a tokenized sentence into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from data.tokenizer import CONTROL_PIECES, SPACE


class Word(NamedTuple):
    """A word, or a run of punctuation, and the positions of its tokens."""

    text: str
    positions: tuple[int, ...]


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
