"""Dividing a line into what is translated by itself: its sentences, and parts of those that are too long."""

import itertools
import re
from collections.abc import Callable, Sequence

from lingua_flax.data.batch import cut
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.translation.requests import Part
from lingua_flax.translation.sentences import language_code, split_sentences

_SPACE = re.compile(r"\s+")
# Languages that are written without spaces between sentences: Chinese, Japanese, Thai, Lao, Burmese, Khmer, Tibetan.
WITHOUT_SPACES = "zh zho chi cmn yue wuu ja jpn th tha lo lao my mya bur km khm bo bod tib"


def split_lines(
    lines: Sequence[str],
    tokenizer: Tokenizer,
    languages: tuple[str, str],
    max_length: int,
    *,
    one_sentence: bool = False,
) -> list[list[Part]]:
    """Divides each line into parts of at most `max_length` tokens, end token included.

    A network that was trained on sentences tends to omit some of several, so every sentence is a part, unless each
    line is `one_sentence`. A sentence that is too long is split in two at the space nearest its middle, and the halves
    likewise if necessary; a word without a space is split in its middle.
    """
    source, target = languages

    def mask(text: str) -> str:
        return tokenizer.protect(text).masked

    def encoded(text: str) -> list[int]:
        return tokenizer.encode_source([text])[0]

    sentences = [[(line, "")] if one_sentence else _sentences(line, source, mask) for line in lines]
    # Encoded all at once, which takes a tenth of the time.
    all_ids = iter(tokenizer.encode_source([text for own in sentences for text, _ in own]))
    divided, between = [], _separator("", target)
    for own in sentences:
        parts: list[Part] = []
        for text, space in own:
            if len(ids := next(all_ids)) <= max_length:
                parts.append(Part(text, ids, _separator(space, target), between))
                continue
            for part, after, is_cut in split_text(text, source, lambda text: len(encoded(text)) <= max_length, mask):
                # It can only still be too long if it is a single character with more byte tokens than max_length.
                parts.append(Part(part, cut(encoded(part), max_length), _separator(after, target), between, is_cut))
            parts[-1] = parts[-1]._replace(after=_separator(space, target))
        divided.append([*parts[:-1], parts[-1]._replace(after="")])
    return divided


def split_text(
    text: str, language: str, fits: Callable[[str], bool], mask: Callable[[str], str] = str
) -> list[tuple[str, str, bool]]:
    """Returns the sentences of a text, and parts of those that do not fit.

    Each comes with the white space that follows it (of parts, a single space), and with whether it is a part. `mask`
    returns a text of the same length that shows where it may be divided.
    """
    parts: list[tuple[str, str, bool]] = []
    for sentence, space in _sentences(text, language, mask):
        *first, last = _halve_until_fits(sentence, fits, mask)
        parts += [*((part, " ", True) for part in first), (last, space, bool(first))]
    return parts


def _sentences(text: str, language: str, mask: Callable[[str], str]) -> list[tuple[str, str]]:
    """Returns the sentences of a text, each with the white space that follows it."""
    text = text.strip()
    ends = itertools.accumulate(len(sentence) for sentence in split_sentences(mask(text), language))
    sentences = [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]
    return [(own.rstrip(), own[len(own.rstrip()) :]) for own in sentences]


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
