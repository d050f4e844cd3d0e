"""Dividing a line into what is translated by itself: its sentences, and parts of those that are too long."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lingua_flax.data.batch import cut
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.translation.sentences import language_code, split_sentences

_SPACE = re.compile(r"\s+")
# Languages that are written without spaces between sentences: Chinese, Japanese, Thai, Lao, Burmese, Khmer, Tibetan.
WITHOUT_SPACES = "zh zho chi cmn yue wuu ja jpn th tha lo lao my mya bur km khm bo bod tib"


class Piece(NamedTuple):
    """A sentence of a line, or a part of one.

    Attributes:
      ids: its token ids, at most as many as the network accepts.
      after: what stands between its translation and that of the next piece.
      is_cut: whether it is a part of a sentence that is too long.
      is_kept: whether it is not translated, because the network has never seen most of its characters, or because there
        are no words to translate in it.
    """

    text: str
    ids: list[int]
    after: str
    is_cut: bool = False
    is_kept: bool = False


def split_lines(
    lines: Sequence[str],
    tokenizer: Tokenizer,
    languages: tuple[str, str],
    max_length: int,
    *,
    one_sentence: bool = False,
) -> list[list[Piece]]:
    """Divides each line into pieces of at most `max_length` tokens, end token included.

    A network that was trained on sentences tends to omit some of several, so every sentence is a piece. A sentence that
    is too long is split in two at the space nearest its middle, and the halves likewise if necessary; a word without a
    space is split in its middle.

    Args:
      languages: the codes of the source and the target language.
      one_sentence: whether each line is a single sentence, to be divided only if it is too long.
    """
    source, target = languages

    def mask(text: str) -> str:
        return tokenizer.protect(text).masked

    sentences = [[line] if one_sentence else _sentences(line.strip(), source, mask) for line in lines]
    texts = [text if one_sentence else text.rstrip() for own in sentences for text in own]
    all_ids = iter(tokenizer.encode_source(texts))  # all at once, which takes a tenth of the time
    divided = []
    for own in sentences:
        pieces: list[Piece] = []
        for sentence in own:
            text, ids = sentence if one_sentence else sentence.rstrip(), next(all_ids)
            parts = (
                [Piece(text, ids, "")]
                if len(ids) <= max_length
                else _cut_pieces(text, tokenizer, languages, max_length, mask)
            )
            after = "" if one_sentence else _separator(sentence[len(text) :], target)
            pieces += [*parts[:-1], parts[-1]._replace(after=after)]
        divided.append([*pieces[:-1], pieces[-1]._replace(after="")])
    return divided


def _cut_pieces(
    text: str, tokenizer: Tokenizer, languages: tuple[str, str], max_length: int, mask: Callable[[str], str]
) -> list[Piece]:
    source, target = languages

    def ids(text: str) -> list[int]:
        return tokenizer.encode_source([text])[0]

    parts = split_text(text, source, lambda text: len(ids(text)) <= max_length, mask)
    # A part can only still be too long if it is a single character with more byte tokens than max_length.
    return [Piece(text, cut(ids(text), max_length), _separator(space, target), is_cut) for text, space, is_cut in parts]


def split_text(
    text: str, language: str, fits: Callable[[str], bool], mask: Callable[[str], str] = str
) -> list[tuple[str, str, bool]]:
    """Returns the sentences of a text, and parts of those that do not fit.

    Each comes with the white space that follows it (of parts, a single space), and with whether it is a part. `mask`
    returns a text of the same length that shows where it may be divided.
    """
    parts: list[tuple[str, str, bool]] = []
    for sentence in _sentences(text.strip(), language, mask):
        own = sentence.rstrip()
        *first, last = _halve_until_fits(own, fits, mask)
        parts += [*((part, " ", True) for part in first), (last, sentence[len(own) :], bool(first))]
    return parts


def _sentences(text: str, language: str, mask: Callable[[str], str]) -> list[str]:
    ends = itertools.accumulate(len(sentence) for sentence in split_sentences(mask(text), language))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def _separator(space: str, target: str) -> str:
    """Returns what stands between two translations where this white space stood between the sentences."""
    if language_code(target) in WITHOUT_SPACES.split():
        return "" if space == " " else space
    return space or " "


def _halve_until_fits(text: str, fits: Callable[[str], bool], mask: Callable[[str], str]) -> list[str]:
    if len(text) < 2 or fits(text):
        return [text]
    middle = len(text) // 2
    spaces = [match.end() for match in _SPACE.finditer(mask(text))]
    cut = min(spaces, key=lambda space: abs(space - middle), default=middle)
    return _halve_until_fits(text[:cut].strip(), fits, mask) + _halve_until_fits(text[cut:], fits, mask)
