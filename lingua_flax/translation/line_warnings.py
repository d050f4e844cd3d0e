"""What is said of lines that are not translated as expected, in the log."""

import logging
from collections.abc import Callable, Collection, Sequence
from textwrap import shorten

from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.requests import Part

MAX_IN_WARNING = 5
MAX_SHOWN = 40  # characters of a text
NOT_TRANSLATED = "not translated, because the network has never seen most of the characters of a sentence"
UNKNOWN_KEPT = "kept as it is, because the network has never seen its characters"
PREFIX_UNUSED = "prefix not used, because nothing of the line is translated"
UNKNOWN_WORDS = "words that the training text never had"
GUESSED = "the translation is a guess, because most words of a sentence are unknown"
TRANSLATED_AROUND = "translated around what must stay as it is, because the network omitted or repeated it"
LIMIT_REACHED = "translation reached its length limit and may be cut short"
_WITHOUT_PLACEHOLDERS = dict.fromkeys(map(ord, PLACEHOLDERS))
log = logging.getLogger(__name__)


class LineWarnings:
    """Logs lines by their numbers, counted from `first`, or pieces of text that are no lines by how they begin."""

    def __init__(self, first: int, texts: Sequence[str] = ()):
        self._first, self._texts = first, texts

    def before_search(
        self, divided: Sequence[Sequence[Part]], parts: Sequence[Part], prefixes: Sequence[str], longest: int
    ) -> None:
        """Logs the lines that are cut or not translated."""
        for line, own in enumerate(divided, self._first):
            if count := sum(part.is_cut for part in own):
                limit = f"more than {longest - 1} tokens, which the model takes at a time"
                log.warning("%s has a sentence of %s: cut into %d parts", self._named([line]), limit, count)
        self._warn(NOT_TRANSLATED, {part.line for part in parts if part.is_unknown})
        kept: dict[int, dict[str, None]] = {}
        for part in parts:
            if unknown := [span.kept for span in part.protected.spans if span.unknown and not part.is_unknown]:
                kept.setdefault(part.line, {}).update(dict.fromkeys(unknown))
        self._warn(UNKNOWN_KEPT, kept, lambda line: f" ({_first_few(list(kept[line]))})")
        own_texts = zip(divided, prefixes, strict=False)
        begun = {line for line, (own, text) in enumerate(own_texts, self._first) if text and own[0].text}
        self._warn(PREFIX_UNUSED, begun - {part.line for part in parts if not part.is_kept})

    def after_search(self, translations: Sequence[Translation], parts: Sequence[Part], around: Sequence[Part]) -> None:
        """Logs the lines whose translations are doubtful; those of the parts `around` are in several pieces."""
        words = {line: own.unknown_words for line, own in enumerate(translations, self._first) if own.unknown_words}
        self._warn(UNKNOWN_WORDS, words, lambda line: f" ({_first_few(words[line])})")
        self._warn(GUESSED, {part.line for part in parts if part.is_guess})
        self._warn(TRANSLATED_AROUND, {part.line for part in around})
        self._warn(LIMIT_REACHED, {part.line for part in parts if len(part.hypotheses[0].tokens) >= part.limit})

    def _warn(self, what: str, lines: Collection[int], note: Callable[[int], str] = lambda line: "") -> None:
        if lines:
            log.warning("%s: %s", what, self._named(sorted(lines), note))

    def _named(self, lines: Sequence[int], note: Callable[[int], str] = lambda line: "") -> str:
        if not self._texts:
            return "line " + _first_few([f"{line}{note(line)}" for line in lines])
        texts = (self._texts[line - self._first].translate(_WITHOUT_PLACEHOLDERS) for line in lines)
        begun = (shorten(text, MAX_SHOWN, placeholder="...") for text in texts)
        return _first_few([f'"{text}"{note(line)}' for line, text in zip(lines, begun, strict=True)])


def _first_few(items: Sequence[str]) -> str:
    rest = f" and {len(items) - MAX_IN_WARNING:,} more" if len(items) > MAX_IN_WARNING else ""
    return ", ".join(items[:MAX_IN_WARNING]) + rest
