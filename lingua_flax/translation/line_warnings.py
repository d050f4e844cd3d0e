"""What is said of lines that are not translated as expected, in the log."""

import logging
from collections.abc import Callable, Collection, Sequence

from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.requests import Part

MAX_IN_WARNING = 5
NOT_TRANSLATED = "not translated, because the network has never seen most of the characters of a sentence"
PREFIX_UNUSED = "prefix not used, because nothing of the line is translated"
UNKNOWN_WORDS = "words that the training text never had"
GUESSED = "the translation is a guess, because most words of a sentence are unknown"
TRANSLATED_AROUND = "translated around what must stay as it is, because the network omitted or repeated it"
LIMIT_REACHED = "translation reached its length limit and may be cut short"
log = logging.getLogger(__name__)


def warn_before_search(
    divided: Sequence[Sequence[Part]], parts: Sequence[Part], prefixes: Sequence[str], first: int, longest: int
) -> None:
    """Logs the lines that are cut or not translated; `first` is the number of the first line."""
    for line, own in enumerate(divided, first):
        if count := sum(part.is_cut for part in own):
            limit = f"more than {longest - 1} tokens, which the model takes at a time"
            log.warning("line %d has a sentence of %s: cut into %d parts", line, limit, count)
    _warn(NOT_TRANSLATED, {part.line for part in parts if part.is_unknown})
    begun = {
        line for line, (own, text) in enumerate(zip(divided, prefixes, strict=False), first) if text and own[0].text
    }
    _warn(PREFIX_UNUSED, begun - {part.line for part in parts if not part.is_kept})


def warn_after_search(
    translations: Sequence[Translation], parts: Sequence[Part], around: Sequence[Part], first: int
) -> None:
    """Logs the lines whose translations are doubtful; those of the parts `around` are in several pieces."""
    words = {line: own.unknown_words for line, own in enumerate(translations, first) if own.unknown_words}
    _warn(UNKNOWN_WORDS, words, lambda line: f"{line} ({_first_few(words[line])})")
    _warn(GUESSED, {part.line for part in parts if part.is_guess})
    _warn(TRANSLATED_AROUND, {part.line for part in around})
    _warn(LIMIT_REACHED, {part.line for part in parts if len(part.hypotheses[0].tokens) >= part.limit})


def _warn(what: str, lines: Collection[int], name: Callable[[int], str] = str) -> None:
    if lines:
        log.warning("%s: line %s", what, _first_few(list(map(name, sorted(lines)))))


def _first_few(items: Sequence[str]) -> str:
    rest = f" and {len(items) - MAX_IN_WARNING:,} more" if len(items) > MAX_IN_WARNING else ""
    return ", ".join(items[:MAX_IN_WARNING]) + rest
