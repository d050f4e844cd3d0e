"""Dividing text into what is translated by itself: its sentences, and parts of those that are too long."""

import itertools
import re
from collections.abc import Callable, Sequence

from lingua_flax.data.batch import cut
from lingua_flax.data.placeholders import Protected, replaced
from lingua_flax.options.language_codes import language_code
from lingua_flax.translation.loading import TrainedNetwork
from lingua_flax.translation.requests import Part
from lingua_flax.translation.sentences import split_sentences

_SPACE = re.compile(r"\s+")
# Languages that are written without spaces between sentences: Chinese, Japanese, Thai, Lao, Burmese, Khmer, Tibetan.
WITHOUT_SPACES = "zh yue wuu ja th lo my km bo"

MAX_UNKNOWN_SHARE = 0.5  # of characters; of a sentence with more, the network does not know the script


def divide_text(network: TrainedNetwork, lines: Sequence[str]) -> list[list[Part]]:
    """Divides lines of a text into sentences, and looks up what the network does not know of them.

    What has no letters is kept as it is, and so is, unless it is to be translated nevertheless, what the network has
    never seen: a sentence that consists mostly of that, and else a word or signs. A character that is not kept becomes
    the nearest that the network knows.
    """
    divided = _split(network, protected_text(network, lines), one_sentence=network.one_sentence_per_line)
    return [[_looked_up(network, part) for part in parts] for parts in divided]


def protected_text(network: TrainedNetwork, lines: Sequence[str]) -> list[Protected]:
    """Returns lines of a text with what is to be kept of them."""
    tokenizer = network.tokenizer
    return list(map(tokenizer.protect, lines)) if network.translate_unknown else tokenizer.protect_text(lines)


def split_lines(network: TrainedNetwork, lines: Sequence[str], *, one_sentence: bool) -> list[list[Part]]:
    """Divides each line into parts of at most `max_length` tokens, end token included, whatever they consist of.

    A network that was trained on sentences tends to omit some of several, so every sentence is a part, unless each
    line is `one_sentence`. A sentence that is too long is split in two at the space nearest its middle, and the halves
    likewise if necessary; a word without a space is split in its middle.
    """
    return _split(network, list(map(network.tokenizer.protect, lines)), one_sentence=one_sentence)


def _split(network: TrainedNetwork, lines: Sequence[Protected], *, one_sentence: bool) -> list[list[Part]]:
    tokenizer, max_length, (source, target) = network.tokenizer, network.max_length, network.languages

    def encoded(text: Protected) -> list[int]:
        return tokenizer.encode_protected([text])[0]

    sentences = [[(line, "")] if one_sentence else _sentences(line, source) for line in lines]
    # Encoded all at once, which takes a tenth of the time.
    all_ids = iter(tokenizer.encode_protected([text for own in sentences for text, _ in own]))
    divided, between = [], _separator("", target)
    for own in sentences:
        parts: list[Part] = []
        for text, space in own:
            if len(ids := next(all_ids)) <= max_length:
                parts.append(Part(text, ids, _separator(space, target), between))
                continue
            for part, after, is_cut in split_text(text, source, lambda text: len(encoded(text)) <= max_length):
                # It can only still be too long if it is a single character with more byte tokens than max_length.
                parts.append(Part(part, cut(encoded(part), max_length), _separator(after, target), between, is_cut))
            parts[-1] = parts[-1]._replace(after=_separator(space, target))
        divided.append([*parts[:-1], parts[-1]._replace(after="")])
    return divided


def split_text(text: Protected, language: str, fits: Callable[[Protected], bool]) -> list[tuple[Protected, str, bool]]:
    """Returns the sentences of a text, and parts of those that do not fit.

    Each comes with the white space that follows it (of parts, a single space), and with whether it is a part.
    """
    parts: list[tuple[Protected, str, bool]] = []
    for sentence, space in _sentences(text, language):
        *first, last = _halve_until_fits(sentence, fits)
        parts += [*((part, " ", True) for part in first), (last, space, bool(first))]
    return parts


def _sentences(text: Protected, language: str) -> list[tuple[Protected, str]]:
    """Returns the sentences of a text, each with the white space that follows it."""
    text = text.part(0, len(text.source))
    ends = itertools.accumulate(map(len, split_sentences(text.masked, language)))
    sentences = []
    for begin, end in itertools.pairwise([0, *ends]):
        own = text.source[begin:end]
        sentences.append((text.part(begin, end), own[len(own.rstrip()) :]))
    return sentences


def _separator(space: str, target: str) -> str:
    """Returns what stands between two translations where this white space stood between the sentences."""
    if language_code(target) in WITHOUT_SPACES.split():
        return "" if space == " " else space
    return space or " "


def _halve_until_fits(text: Protected, fits: Callable[[Protected], bool]) -> list[Protected]:
    length = len(text.source)
    if length < 2 or fits(text):
        return [text]
    spaces = [match.end() for match in _SPACE.finditer(text.masked)]
    edges = [place for span in text.spans for place in span[:2] if 0 < place < length]
    cut = min(spaces or edges, key=lambda place: abs(place - length // 2), default=length // 2)
    return _halve_until_fits(text.part(0, cut), fits) + _halve_until_fits(text.part(cut, length), fits)


def _looked_up(network: TrainedNetwork, part: Part) -> Part:
    tokenizer, text = network.tokenizer, part.protected
    unknown = sum(span.unknown for span in text.spans)
    others = [span for span in text.spans if not span.unknown]
    counted = "".join(replaced(text.source, others, [""] * len(others)).split())
    is_unknown = unknown > MAX_UNKNOWN_SHARE * len(counted)
    if is_unknown or not text.has_words_around_spans:
        return part._replace(is_kept=True, is_unknown=is_unknown)
    places, are_most = tokenizer.unknown_words(text)
    return part._replace(unknown=tuple(part.text[begin:end] for begin, end in places), is_guess=are_most)
