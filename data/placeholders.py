"""What a translation must contain as it is, such as a URL, and the placeholders that stand for it in the network.

A tokenizer with placeholders has some pieces of a single private-use character each. In a text to translate, every span
that is to be kept becomes one of them, the network translates the rest and places them, and the translation gets the
spans back. In a pair to train on, only those spans are replaced that both sides contain equally often.
"""

import bisect
import dataclasses
import functools
import itertools
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import regex

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.glossary import UNSPACED, Glossary
from lingua_flax.options.schema import MAX_PLACEHOLDERS

FIRST_PLACEHOLDER = 0x10F000  # of the last plane for private use: text hardly ever has one of its characters
PLACEHOLDERS = "".join(chr(FIRST_PLACEHOLDER + number) for number in range(MAX_PLACEHOLDERS))
_STRIPPED = re.compile(r"\S(?:.*\S)?", re.DOTALL)  # a text without white space around it
_PLACEHOLDER = re.compile(f"[{PLACEHOLDERS}]")

# Letters, digits and "_", but not those of Chinese and Japanese, where words begin and end without a space.
_W = r"0-9A-Za-z_\u00c0-\u0dff"
_FILE_TYPES = "csv|docx?|exe|gif|gz|html?|ini|java|jpe?g|js|json|md|mp[34]|odt|pdf|png|pptx?|py|sh|svg|tar|toml|tsv|"
_FILE_TYPES += "txt|xlsx?|xml|ya?ml|zip"
# Of a message for several cases, the text for one of them, with names and further messages in braces.
_VARIANT = r"\{[^{}]*\}"
for _ in range(3):
    _VARIANT = rf"\{{[^{{}}]*(?:{_VARIANT}[^{{}}]*)*\}}"
# The beginning of a name: not inside of another one, not even after a sign in it, as in a-b-c.
_NAME = rf"(?<![{_W}/.])(?<![{_W}/.+-][+-])[{_W}]"
# Each takes linear time: no two repetitions in a row match the same characters, and what begins at several places of a
# run of characters, such as a URL, reads a limited number of them, or is refused inside of the run. JavaScript's
# patterns, which read these, too (export/browser/words.js), have nothing better.
TO_KEEP = re.compile(
    "|".join(
        (
            _PLACEHOLDER.pattern,
            r"(?<!`)(`{1,3})(?!`).+?(?<!`)\1(?!`)",  # code
            r"</?(?:[A-Za-z][\w:.-]*(?:\s[^<>]*)?|\d{1,3})/?>",  # tags, such as <x id="1"/> and <0>
            r"\$?\{{2,3}[^{}]*\}{2,3}|\{%[^{}]*%\}",  # {{ name | upper }}, {% if name %}
            # {}, {name}, {0:.2f}, {n, number, percent}, ${name}, %{name}
            r"[$%#]?\{\s*(?:(?:[\w.-]+|(?=[!:,]))"
            r"(?:[!:][^{}\s]*|(?:,\s*\w+){1,2}|,\s*(?:number|date|time)\s*,[^{}]*)?\s*)?\}",
            rf"\{{\s*[\w.-]+\s*,\s*(?:plural|select(?:ordinal)?)\s*,(?:[^{{}}]*{_VARIANT})+\s*\}}",  # of ICU
            # %s, %1$d, %(name)s, %<name>s
            rf"%(?:\d+\$|\(\w+\)|<\w+>)?[-+0#]*(?:[1-9]\d*)?(?:\.\d+)?(?:hh?|ll?|z)?[diouxXeEfgGcsnp@](?![{_W}])",
            rf"(?<![^\s(\x22'«“„]):[A-Za-z_][{_W}]+(?![{_W}:-])",  # :name
            # URLs, without a full stop or a bracket that follows.
            rf"(?<![{_W}])(?:[A-Za-z][A-Za-z0-9+.-]{{0,30}}://|www\.|mailto:)[!#-;=?-_a-~{_W}]*[/#=&\-{_W}]",
            rf"(?<![{_W}.+-])[{_W}.+-]+@[{_W}-]+(?:\.[{_W}-]+)*\.[{_W}]{{2,}}",  # mail addresses
            rf"(?<![{_W}@./])@[{_W}]+(?:[.-][{_W}]+)*(?:@[{_W}-]+(?:\.[{_W}-]+)+)?",  # @name, @name@host.org
            rf"(?<![{_W}/.~])(?:~|\.{{1,2}}|/[{_W}.+@-]+)(?:/[{_W}.+@-]*[{_W}])+/?",  # /usr/bin, ./run.sh
            rf"(?<![{_W}])[A-Za-z]:\\(?:[{_W}.+@ -]+\\)*[{_W}.+@-]*[{_W}]",  # C:\Program Files\x
            rf"{_NAME}[{_W}.+-]*(?:/[{_W}.+-]+)+\.[A-Za-z][{_W}]{{0,4}}(?![{_W}])",  # src/main.rs
            rf"{_NAME}[{_W}.+-]*\.(?:{_FILE_TYPES})(?![{_W}])",  # report.pdf
            rf"(?<![{_W}])[+#]?(?:\d[.,:/\u2013-]?){{3,}}\d(?![{_W}])",  # numbers of four digits or more
        )
    )
)
# The end of a word and the beginning of a span that is no tag, or the reverse, in a script without spaces in between.
_JOINT = regex.compile(rf"(?=.?[{UNSPACED}\p{{Hangul}}])[\w{PLACEHOLDERS}#%&+/=@`{{}}~-]{{2}}")


class Span(NamedTuple):
    """Characters of a text, in whose place its translation has the text `kept`: they, or the translation of a term."""

    begin: int
    end: int
    kept: str
    is_term: bool = False  # that is capitalized at the beginning of a sentence
    unknown: int = 0  # how many of its characters the tokenizer does not know


def spans_to_keep(text: str, glossary: Glossary | None = None) -> list[Span]:
    """Returns what is to be kept, in order, and the terms that are not inside of it."""
    spans = _spans(TO_KEEP, text)
    if glossary:
        taken = {place for span in spans for place in range(span.begin, span.end)}
        terms = [Span(*term, is_term=True) for term in glossary.terms_in(text)]
        spans += [term for term in terms if taken.isdisjoint(range(term.begin, term.end))]
    return sorted(spans)


def _spans(pattern: re.Pattern[str], text: str) -> list[Span]:
    return [Span(*match.span(), match[0]) for match in pattern.finditer(text)]


@dataclasses.dataclass(frozen=True)
class Protected:
    """A source, its spans in order, and the characters of which each gets one, or none if there are too few of them.

    `written` is the source, character by character, in those that the tokenizer knows, if it does not know all.
    """

    source: str
    spans: Sequence[Span] = ()
    available: str = ""
    written: str = ""

    @functools.cached_property
    def placeholders(self) -> str:
        """Those of the spans."""
        return _chosen(self.source, self.available, len(self.spans))

    @property
    def has_placeholders(self) -> bool:
        """Whether there is one for every span."""
        return len(self.placeholders) == len(self.spans)

    @functools.cached_property
    def text(self) -> str:
        """The text with placeholders."""
        return replaced(self.written or self.source, self.spans, self.placeholders)

    def part(self, begin: int, end: int) -> Self:
        """Returns a part without the white space around it, with the spans that are inside of it."""
        text = self.source[begin:end]
        begin, end = begin + len(text) - len(text.lstrip()), begin + len(text.rstrip())
        first, after = (bisect.bisect_left(self.spans, place, key=lambda span: span.begin) for place in (begin, end))
        inside = [Span(own.begin - begin, own.end - begin, *own[2:]) for own in self.spans[first:after]]
        inside = [own for own in inside if own.end <= end - begin]
        return dataclasses.replace(self, source=text.strip(), spans=inside, written=self.written[begin:end])

    @property
    def masked(self) -> str:
        """The source with a number or a capitalized word in the place of each span, so that no span is divided."""
        spans = [span for span in self.spans if not span.unknown]
        kept = [self.source[span.begin : span.end] for span in spans]
        words = ["0" * len(text) if text[0].isdigit() else "x" * len(text) for text in kept]
        return replaced(self.source, spans, [word.capitalize() for word in words])

    @property
    def has_words_around_spans(self) -> bool:
        """Whether there is anything to translate."""
        return has_letters(replaced(self.source, self.spans, [""] * len(self.spans)))

    def chunks(self, space: str = "") -> Iterator[tuple[Self, str, bool]]:
        """Yields spans and the rest: the text, the white space after it (`space` in scripts without), if it is kept."""
        places = [0, *(place for span in self.spans for place in (span.begin, span.end)), len(self.source)]
        found = []
        for number, (begin, end) in enumerate(itertools.pairwise(places)):
            if text := _STRIPPED.search(self.source, begin, end):
                found.append((*text.span(), bool(number % 2) or not has_letters(text[0])))
        for (begin, end, is_kept), (following, _, _) in itertools.pairwise([*found, (len(self.source), 0, True)]):
            after = space if _JOINT.fullmatch(self.source[end - 1 : following + 1]) else self.source[end:following]
            part = self.part(begin, end)
            if begin > found[0][0] and any(span.is_term for span in part.spans):
                part = dataclasses.replace(part, spans=[span._replace(is_term=False) for span in part.spans])
            yield part, after, is_kept

    def placed(self, prefix: str) -> str:
        """Returns the beginning of a translation, in which the spans stand, with placeholders."""
        unplaced = defaultdict(list)
        for span, placeholder in zip(self.spans, self.placeholders, strict=False):
            unplaced[span.kept].append(placeholder)
        # The longest at a place, and not inside of a word: 1000 stands neither in 10000 nor in 21000.
        kept = "|".join(map(re.escape, sorted(unplaced, key=len, reverse=True)))
        whole = rf"(?<![{_W}](?=[{_W}]))(?:{kept})(?!(?<=[{_W}])[{_W}])"
        return re.sub(whole, lambda match: unplaced[match[0]].pop(0) if unplaced[match[0]] else match[0], prefix)

    def is_complete(self, translation: str) -> bool:
        """Returns whether a translation has the placeholder of every span once."""
        return self.has_placeholders and all(translation.count(placeholder) == 1 for placeholder in self.placeholders)

    def restored(self, translation: str) -> str:
        """Returns a part of a translation with what must be kept; a first term is capitalized if the source is."""
        spans = self._span_of
        text = _PLACEHOLDER.sub(lambda match: spans[match[0]].kept if match[0] in spans else "", translation)
        return self._begun(text, spans.get(translation[:1]))

    @property
    def untranslated(self) -> str:
        """The source with what must be kept in the place of the spans; a first term is capitalized if the source is."""
        text = replaced(self.source, self.spans, [span.kept for span in self.spans])
        return self._begun(text, self.spans[0] if self.spans and not self.spans[0].begin else None)

    def _begun(self, text: str, first: Span | None) -> str:
        capitalize = first and first.is_term and self.source.lstrip()[:1].isupper()
        return text[:1].upper() + text[1:] if capitalize else text

    def original(self, text: str) -> str:
        """Returns a part of the text as it is in the source."""
        originals = {mark: self.source[span.begin : span.end] for mark, span in self._span_of.items()}
        return _PLACEHOLDER.sub(lambda match: originals.get(match[0], match[0]), text)

    @property
    def _span_of(self) -> dict[str, Span]:
        return dict(zip(self.placeholders, self.spans, strict=False))


def has_letters(text: str) -> bool:
    """Returns whether there is a letter, of any script; without one, nothing is translated."""
    return any(map(str.isalpha, text))


def protect(text: str, placeholders: str, glossary: Glossary | None = None) -> Protected:
    """Returns the text with placeholders for its spans; if there are none, only what looks like one is a span."""
    spans = spans_to_keep(text, glossary) if placeholders else _spans(_PLACEHOLDER, text)
    return Protected(text, spans, placeholders)


def protect_pair(pair: Pair, placeholders: str) -> Pair:
    """Returns a pair to train on, in which what both sides contain equally often has the same placeholders."""
    if not placeholders:
        return pair
    sides = [spans_to_keep(text) for text in pair]
    if not all(sides):
        return pair
    counts, others = (Counter(span.kept for span in side) for side in sides)
    sides = [[span for span in side if counts[span.kept] == others[span.kept]] for side in sides]
    chosen = _chosen(pair[0], placeholders, len(sides[0]))
    of_text = defaultdict(list)
    for span, placeholder in zip(sides[0], chosen, strict=False):
        of_text[span.kept].append(placeholder)
    target = "".join(of_text[span.kept].pop(0) for span in sides[1]) if chosen else ""
    return Pair(replaced(pair[0], sides[0], chosen), replaced(pair[1], sides[1], target))


def _chosen(text: str, placeholders: str, count: int) -> str:
    """Returns as many placeholders, beginning with any, so that the network learns all of them; none if too many."""
    if not 0 < count <= len(placeholders):
        return ""
    start = zlib.crc32(text.encode()) % len(placeholders)
    return (placeholders[start:] + placeholders[:start])[:count]


def replaced(text: str, spans: Sequence[Span], replacements: Sequence[str]) -> str:
    """Returns the text with the spans replaced; those without a replacement stay."""
    pieces, place = [], 0
    for span, replacement in zip(spans, replacements, strict=False):
        pieces += [text[place : span.begin], replacement]
        place = span.end
    return "".join([*pieces, text[place:]])
