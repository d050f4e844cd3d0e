"""The engine of the server, which translates lines as lingua-flax translate does, but shares its searches."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from lingua_flax.data.batch import bucket_lengths
from lingua_flax.data.glossary import Glossary
from lingua_flax.options.schema import AlignmentOptions, DecodingOptions
from lingua_flax.translation.hypotheses import Hypothesis, Translation
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Searches, Translator
from lingua_flax.translation.word_alignment import Link, align_translations

Found = Mapping[int, tuple[Hypothesis, ...]]  # hypotheses of parts, by their indices in a batch


class Searcher(Protocol):
    """Searches batches, from several threads; see `SegmentedSearch`."""

    def max_rows(self, length: int) -> int:
        """Returns how many parts of a padded length can be searched together."""

    def search(self, parts: Sequence[Part], num_hypotheses: int, is_wanted: Callable[[int], bool]) -> Iterable[Found]:
        """Searches a batch, but for the parts of which `is_wanted` is or becomes false."""


@dataclasses.dataclass
class Engine:
    """Translates with one translator for each target language; programs that align words are compiled when needed.

    `workers` batches are searched at the same time.
    """

    translators: Mapping[str, Translator]
    max_length: int
    searcher: Searcher
    options: DecodingOptions
    alignment: AlignmentOptions
    workers: int

    def searches(
        self, lines: Sequence[str], target: str, num_hypotheses: int, glossary: Glossary | None
    ) -> Searches[list[Translation]]:
        """Returns the searches that translate lines; raises UserError if the network has no place for a glossary."""
        translator = self.translators[target]
        if glossary:
            translator = translator.with_glossary(glossary)
        return translator.searches(lines, self.options, num_hypotheses)

    def align(self, translation: Translation, target: str) -> list[Link]:
        """Returns the links between a line and its best translation."""
        (links,) = align_translations(self.translators[target], [translation], self.alignment)
        return links

    def cost(self, part: Part) -> int:
        """Returns what a search costs: tokens times beams."""
        return len(part.source) * self.options.beam_size

    @property
    def max_cost(self) -> int:
        """What the longest sentence costs."""
        return self.max_length * self.options.beam_size

    def padded_length(self, part: Part) -> int:
        """Returns the length for which a part is padded; parts of one length are searched together."""
        lengths = bucket_lengths(self.max_length)
        return lengths[bisect.bisect_left(lengths, len(part.source))]
