"""Putting the inline elements of a sentence, such as a bold word, around the words of its translation.

Every element stands around the longest run of words that come from its own words, by the links of a word alignment, as
in Bergamot's translator. Elements inside of another stay inside of it, and those beside each other never overlap.
"""

from __future__ import annotations

import bisect
import dataclasses
import html
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from lingua_flax.data.glossary import WORD
from lingua_flax.data.tokenizer import Characters
from lingua_flax.translation.word_alignment import Link
from lingua_flax.translation.words import LETTER


@dataclasses.dataclass
class Element:
    """Tags around the characters `begin` to `end` of a text, or, if there are none, at their place."""

    start_tag: str = ""
    end_tag: str = ""
    begin: int = 0
    end: int = 0
    children: list[Element] = dataclasses.field(default_factory=list)


def with_tags(text: str, top: Element, translation: str, links: Sequence[Link]) -> str:
    """Returns the translation as HTML with the elements inside of `top`, which is around all of the text."""
    placement = _Placement(text, translation, links)
    return placement.rendered(top, 0, len(placement.words))


class _Placement:
    """The words of a translation, and for each of them the places in the text where the tokens begin it comes from."""

    def __init__(self, text: str, translation: str, links: Sequence[Link]):
        self.text, self.translation = text, translation
        self.words = [Characters(*word.span()) for word in WORD.finditer(translation)]
        self.origins: list[list[int]] = [[] for _ in self.words]
        for link in links:
            source = text[slice(*link.source)]
            place = link.source.begin + len(source) - len(source.lstrip())
            first = bisect.bisect_right(self.words, link.target.begin, key=lambda word: word.end)
            last = bisect.bisect_left(self.words, link.target.end, key=lambda word: word.begin)
            for origins in self.origins[first:last]:
                origins.append(place)

    def rendered(self, element: Element, first: int, last: int) -> str:
        """Returns words `first` to `last`, with the elements inside of this one around some of them."""
        # Without tags, the words come with what stands before and after them.
        bounds = (self._begin(first), self._end(last)) if element.start_tag else (0, len(self.translation))
        place, pieces = bounds[0], []
        for child, begin, end in self._placed(element, first, last):
            if begin < end:
                start, stop = self._begin(begin), self._end(end)
                inside = self.rendered(child, begin, end)
            else:
                follows_space = not child.begin or self.text[child.begin - 1].isspace()
                start = stop = max(place, min(bounds[1], self._begin(begin) if follows_space else self._end(begin)))
                inside = _empty(child)
            pieces += [_escaped(self.translation[place:start]), child.start_tag, inside, child.end_tag]
            place = stop
        return "".join([*pieces, _escaped(self.translation[place : bounds[1]])])

    def _begin(self, word: int) -> int:
        return self.words[word].begin if word < len(self.words) else len(self.translation)

    def _end(self, word: int) -> int:
        return self.words[word - 1].end if word else 0

    def _placed(self, element: Element, first: int, last: int) -> list[tuple[Element, int, int]]:
        """Returns the children with the words around which each is put, in order; none of these if it is empty."""
        taken: dict[int, Element] = {}
        full = [child for child in element.children if self.text[child.begin : child.end].strip()]
        words: dict[int, list[int]] = {id(child): [] for child in element.children}
        free, text = set(range(first, last)), self.text[element.begin : element.end].strip()
        is_whole = len(full) == 1 and self.text[full[0].begin : full[0].end].strip() == text
        own = {id(full[0]): sorted(free)} if is_whole else self._words_from(full, first, last)
        for child in sorted(full, key=lambda child: -len(own[id(child)])):
            chosen = self._longest_run([i for i in own[id(child)] if i in free], free)
            chosen = self._with_signs(chosen, child, free) if chosen else self._near(child, element, sorted(free))
            free.difference_update(chosen)
            taken |= dict.fromkeys(chosen, child)
            words[id(child)] = chosen
        placed = []
        for number, child in enumerate(element.children):
            chosen = words[id(child)]
            begin = min(chosen) if chosen else self._place(child, element, first, last, taken)
            placed.append((begin, begin + len(chosen), number, child))
        return [(child, begin, end) for begin, end, _, child in sorted(placed)]

    def _words_from(self, elements: Sequence[Element], first: int, last: int) -> dict[int, list[int]]:
        """Returns for each element the words of which at least half of the tokens come from words inside of it."""
        begins = [element.begin for element in elements]
        found: dict[int, list[int]] = {id(element): [] for element in elements}
        for word in range(first, last) if elements else ():
            near = [(elements[max(0, bisect.bisect(begins, place) - 1)], place) for place in self.origins[word]]
            inside = Counter(id(element) for element, place in near if element.begin <= place < element.end)
            for element, count in inside.items():
                if 2 * count >= len(near):
                    found[element].append(word)
        return found

    def _longest_run(self, chosen: Sequence[int], free: Set[int]) -> list[int]:
        """Returns the longest run of chosen words; words without an origin may be between them."""
        runs: list[list[int]] = []
        for i in chosen:
            between = range(runs[-1][-1] + 1, i) if runs else ()
            if runs and all(k in free and not self.origins[k] for k in between):
                runs[-1] += [*between, i]
            else:
                runs.append([i])
        return max(runs, key=len, default=[])

    def _with_signs(self, chosen: list[int], child: Element, free: Set[int]) -> list[int]:
        """Returns the words with the punctuation beside them, where the child begins or ends with punctuation, too."""
        source = self.text[child.begin : child.end].strip()
        sides = ((source[0], chosen[0] - 1), (source[-1], chosen[-1] + 1))
        return sorted([*chosen, *(i for sign, i in sides if i in free and self._is_sign(i) and not LETTER.match(sign))])

    def _is_sign(self, word: int) -> bool:
        return not LETTER.search(self.translation[slice(*self.words[word])])

    def _near(self, child: Element, element: Element, free: Sequence[int]) -> list[int]:
        """Returns the free word that is about as far into the translation as the child is into the text, if any.

        Words that come from nowhere else are preferred, and all words to punctuation.
        """
        share = ((child.begin + child.end) / 2 - element.begin) / max(1, element.end - element.begin)
        expected = free[0] + share * (free[-1] + 1 - free[0]) - 0.5 if free else 0
        return sorted(free, key=lambda i: (self._is_sign(i), bool(self.origins[i]), abs(i - expected)))[:1]

    def _place(self, child: Element, element: Element, first: int, last: int, taken: Mapping[int, Element]) -> int:
        """Returns the word before which an empty child is put: after the words that come from those before it."""
        if not self.text[element.begin : child.begin].strip():
            return first
        if not self.text[child.begin : element.end].strip():
            return last
        before = [(place, i) for i in range(first, last) for place in self.origins[i] if place < child.begin]
        place = max(before)[1] + 1 if before else first
        while first < place < last and place in taken and taken.get(place - 1) is taken[place]:
            place += 1
        return place


def _empty(element: Element) -> str:
    return "".join(child.start_tag + _empty(child) + child.end_tag for child in element.children)


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")
