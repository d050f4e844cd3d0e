"""Putting the inline elements of a sentence, such as a bold word, around the words of its translation.

Every element stands around the longest run of words that come from its own words, by the links of a word alignment, as
in Bergamot's translator. Elements inside of another stay inside of it, and those beside each other never overlap. Where
a translation is the text itself, and every word is linked with itself, all of them are where they were.
"""

from __future__ import annotations

import bisect
import dataclasses
import html
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from lingua_flax.data.glossary import WORD
from lingua_flax.data.placeholders import has_letters
from lingua_flax.data.tokenizer import Characters
from lingua_flax.translation.word_alignment import Link, moved
from lingua_flax.translation.words import LETTER

Translations = Iterator[tuple[str, Sequence[Link]]]  # of several texts, with the links of each
_SPACES = re.compile(r"[ \t\n\f\r]+")


@dataclasses.dataclass
class Element:
    """Tags around the characters `begin` to `end` of a text, or, if there are none, at their place."""

    start_tag: str = ""
    end_tag: str = ""
    begin: int = 0
    end: int = 0
    children: list[Element] = dataclasses.field(default_factory=list)

    def places(self) -> Iterator[int]:
        """Yields where it and the elements in it begin and end."""
        yield from (self.begin, self.end)
        for child in self.children:
            yield from child.places()


class TaggedText:
    """A text with elements in it, of which some, such as an image, count as words."""

    def __init__(self, marks: Iterable[str]):
        """Begins an empty text; `marks` are characters that are not in it, for elements that count as words."""
        self.text = ""
        self.top = Element()  # around all of it
        self._marks: dict[str, str] = {}  # elements that count as words, by their characters
        self._free = iter(marks)

    @property
    def needs_links(self) -> bool:
        """Whether elements have to be put into its translation."""
        return bool(self.top.children or self._marks)

    def add_text(self, text: str) -> None:
        """Adds text, with single spaces; those at the beginning and the end are no part of what is translated."""
        text = _SPACES.sub(" ", text)
        self.text += text.removeprefix(" ") if self.text.endswith(" ") else text

    def add_word(self, content: str) -> bool:
        """Adds an element that counts as a word, if there is a mark for it."""
        if mark := next(self._free, ""):
            self._marks[mark] = content
            self.text += mark
        return bool(mark)

    def is_note(self, name: str, said: str, following: str) -> bool:
        """Returns whether an element is the number of a note, or the like, beside a word of which it is no part.

        That of the text of a note stands at its beginning, as LibreOffice writes EPUB.
        """
        is_after_word = bool(self.text[-1:].strip()) and not following[:1].isalnum()
        begins = name == "sup" and not self.text and following[:1].isalpha()
        return name in ("sub", "sup") and (is_after_word or begins) and not has_letters(said)

    def rendered(self, translation: str, links: Sequence[Link]) -> str:
        """Returns the HTML of a translation of the text without the spaces around it."""
        start = len(self.text) - len(self.text.lstrip(" "))
        translation = f"{self.text[:start]}{translation}{self.text[len(self.text.rstrip(' ')) :]}"
        marks = {mark: translation.find(mark) for mark in self._marks}
        links = [moved(link, start, start) for link in links]
        links = [link for link in links if link.target.begin not in marks.values()]
        for mark, place in marks.items():
            source = self.text.index(mark)
            links.append(Link(Characters(source, source + 1), Characters(place, place + 1)))
        self.top.end = len(self.text)
        text = with_tags(self.text, self.top, translation, links)
        for mark, content in self._marks.items():
            text = text.replace(mark, content)
        return text


def is_kept(translate: str | None, classes: str | None) -> bool:
    """Returns whether an element with these attributes says of itself that it is not to be translated."""
    return (translate or "").lower() == "no" or "notranslate" in (classes or "").split()


def with_tags(text: str, top: Element, translation: str, links: Sequence[Link]) -> str:
    """Returns the translation as HTML with the elements inside of `top`, which is around all of the text."""
    if not top.children:
        return _escaped(translation)
    placement = _Placement(text, top, translation, links)
    placement.find_runs(top)
    placement.render(top, range(len(placement.target)), Characters(0, len(translation)))
    return "".join(placement.pieces)


class _Placement:
    """What tags stand around in a text and in its translation: words and signs, here called units.

    A word in which a tag stands, as in H<sub>2</sub>O, is several units, also of a translation that has the same word.
    """

    def __init__(self, text: str, top: Element, translation: str, links: Sequence[Link]):
        self.text, self.translation = text, translation
        words, translated = ([Characters(*word.span()) for word in WORD.finditer(side)] for side in (text, translation))
        places = sorted(set(top.places()))
        divided = [_divided(word, places) for word in words]
        first = list(itertools.accumulate(map(len, divided), initial=0))
        self.source = list(itertools.chain.from_iterable(divided))
        self.target: list[Characters] = []
        self.linked: list[int] = []  # units of the translation that come from one of the text
        self.runs_from: list[list[range]] = [[] for _ in self.source]  # where in `linked` those are that come from it
        for word, origin in zip(translated, _origins(text, words, translation, translated, links), strict=True):
            if origin is None:
                self.target.append(word)
                continue
            units = list(enumerate(divided[origin], first[origin]))
            if text[slice(*words[origin])] == translation[slice(*word)]:
                shift = word.begin - words[origin].begin
                own = [(number, Characters(unit.begin + shift, unit.end + shift)) for number, unit in units]
            else:
                own = [(max(units, key=lambda unit: unit[1].end - unit[1].begin)[0], word)]
            for number, unit in own:
                self.runs_from[number].append(range(len(self.linked), len(self.linked) + 1))
                self.linked.append(len(self.target))
                self.target.append(unit)
        self.is_linked = set(self.linked)
        ends = [self.linked[runs[-1].start] + 1 if runs else 0 for runs in self.runs_from]
        self.after = list(itertools.accumulate(ends, lambda last, end: end or last, initial=0))
        self.runs: dict[int, list[range]] = {}  # of the units in `linked` that come from inside of an element
        self.pieces: list[str] = []

    def find_runs(self, element: Element) -> list[range]:
        """Finds for each element all runs of linked units that come from inside of it, and returns its own."""
        runs, units = [], self._units(element)
        place = units.start
        for child in element.children:
            inside = self._units(child)
            runs += [*itertools.chain(*self.runs_from[place : inside.start]), *self.find_runs(child)]
            place = inside.stop
        runs += itertools.chain(*self.runs_from[place : units.stop])
        joined = self.runs[id(element)] = list[range]()
        for run in sorted(runs, key=lambda run: run.start):
            is_next = joined and joined[-1].stop == run.start
            joined.append(range(joined.pop().start if is_next else run.start, run.stop))
        return joined

    def render(self, element: Element, own: range, within: Characters) -> None:
        """Adds what is within characters to the pieces, with the elements inside of this one, which has these units."""
        place = within.begin
        for child, units in self._placed(element, own):
            begin, end = (min(max(place, side), within.end) for side in self._bounds(child, units))
            self.pieces += [_escaped(self.translation[place:begin]), child.start_tag]
            self.render(child, units, Characters(begin, end))
            self.pieces.append(child.end_tag)
            place = end
        self.pieces.append(_escaped(self.translation[place : within.end]))

    def _units(self, element: Element) -> range:
        return _inside(self.source, Characters(element.begin, element.end))

    def _placed(self, element: Element, own: range) -> list[tuple[Element, range]]:
        """Returns the children with the units around which each is put, in order; none of these if it is empty."""
        full = [child for child in element.children if self._units(child)]
        is_whole = len(full) == 1 and self._units(full[0]) == self._units(element)
        chosen = {id(child): own if is_whole else self._longest_run(child, own) for child in full}
        without = [child for child in full if not chosen[id(child)]]
        chosen |= self._near(without, element, own, chosen.values()) if without else {}
        runs = sorted(filter(None, chosen.values()), key=lambda run: run.start)
        placed = []
        for number, child in enumerate(element.children):
            units = chosen.get(id(child)) or self._empty_at(child, element, own, runs)
            placed.append((units.start, units.stop, number, child))
        return [(child, range(begin, end)) for begin, end, _, child in sorted(placed)]

    def _longest_run(self, child: Element, own: range) -> range:
        """Returns the longest run of units that come from inside of a child; others without an origin may be in it."""
        runs = [range(self.linked[run.start], self.linked[run.stop - 1] + 1) for run in self.runs[id(child)]]
        return max((run for run in runs if own.start <= run.start and run.stop <= own.stop), key=len, default=range(0))

    def _near(
        self, children: Sequence[Element], element: Element, own: range, runs: Iterable[range]
    ) -> dict[int, range]:
        """Returns for each child the unit outside of runs that is about as far into the translation as it is, if any.

        Units that come from nowhere else are preferred, and all words to signs.
        """
        groups: list[list[int]] = [[], [], [], []]
        for unit in sorted(set(own).difference(*runs)):
            groups[2 * _is_sign(self.translation, self.target[unit]) + (unit in self.is_linked)].append(unit)
        near = {}
        for child in children:
            share = ((child.begin + child.end) / 2 - element.begin) / (element.end - element.begin)
            expected = own.start + share * len(own) - 0.5
            if group := next(filter(None, groups), None):
                place = bisect.bisect(group, expected)
                place -= place == len(group) or (place > 0 and expected - group[place - 1] <= group[place] - expected)
                near[id(child)] = range(unit := group.pop(place), unit + 1)
        return near

    def _empty_at(self, child: Element, element: Element, own: range, runs: Sequence[range]) -> range:
        """Returns the place of an empty child: after what comes from before it, and not inside of another child."""
        units, place = self._units(element), self._units(child).start
        unit = max(own.start, min(self.after[place] if place < units.stop else own.stop, own.stop))
        unit = own.start if place == units.start else unit
        before = bisect.bisect_left(runs, unit, key=lambda run: run.start)
        unit = max(unit, runs[before - 1].stop if before else 0)
        return range(unit, unit)

    def _bounds(self, child: Element, units: range) -> tuple[int, int]:
        """Returns the characters of the translation that are inside of a child with these units."""
        follows_space = not child.begin or self.text[child.begin - 1].isspace()
        own = self._units(child)
        begin = self._place(child.begin, own.start, units.start, is_end=not units and not follows_space)
        return begin, max(begin, self._place(child.end, own.stop, units.stop, is_end=bool(units) or not follows_space))

    def _place(self, place: int, before: int, unit: int, *, is_end: bool) -> int:
        """Returns the place between two units of the translation for one between two of the text, numbers before which.

        It is the same if the same spaces are there, otherwise the end of the one unit or the beginning of the other.
        """
        own, other = _between(self.text, self.source, before), _between(self.translation, self.target, unit)
        if self.text[slice(*own)] == self.translation[slice(*other)]:
            return other.begin + place - own.begin
        return other.begin if is_end else other.end


def _origins(
    text: str, source: Sequence[Characters], translation: str, target: Sequence[Characters], links: Sequence[Link]
) -> list[int | None]:
    """Returns from which word of the text each of the translation comes: the one to which most of its links go.

    A sign without a link comes from the sign that is beside the word from which the word beside it comes.
    """
    found: dict[int, Counter[int]] = defaultdict(Counter)
    for link in links:
        linked = _inside(source, link.source)
        for number, word in enumerate(_inside(target, link.target) if linked else ()):
            found[word][linked[min(number, len(linked) - 1)]] += 1
    origins = [found[word].most_common(1)[0][0] if word in found else None for word in range(len(target))]
    free = {number for number, word in enumerate(source) if _is_sign(text, word)}.difference(origins)
    signs = [number for number, word in enumerate(target) if _is_sign(translation, word)]
    for numbers, step, edge in ((signs, 1, -1), (signs[::-1], -1, len(source))):
        for number in numbers:
            beside = origins[number - step] if 0 <= number - step < len(target) else edge
            if origins[number] is None and beside is not None and beside + step in free:
                origins[number] = beside + step
                free.remove(beside + step)
    return origins


def _divided(word: Characters, places: Sequence[int]) -> list[Characters]:
    inside = places[bisect.bisect(places, word.begin) : bisect.bisect_left(places, word.end)]
    return [Characters(*pair) for pair in itertools.pairwise([word.begin, *inside, word.end])]


def _inside(units: Sequence[Characters], characters: Characters) -> range:
    """Returns the numbers of the units of which characters are among these, or of the next one, if they are none."""
    first = bisect.bisect(units, characters.begin, key=lambda unit: unit.end)
    return range(first, bisect.bisect_left(units, characters.end, first, key=lambda unit: unit.begin))


def _between(text: str, units: Sequence[Characters], number: int) -> Characters:
    """Returns the characters before a unit and after the one before it."""
    begin = units[number - 1].end if number else 0
    return Characters(begin, units[number].begin if number < len(units) else len(text))


def _is_sign(text: str, word: Characters) -> bool:
    return not LETTER.search(text[slice(*word)])


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")
