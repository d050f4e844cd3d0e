"""The engine of the server, which translates lines as lingua-flax translate does, but shares its searches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lingua_flax.data.batch import bucket_lengths
from lingua_flax.data.glossary import Glossary
from lingua_flax.options.schema import AlignmentOptions, DecodingOptions
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link, align_translations

if TYPE_CHECKING:
    from lingua_flax.serving.continuous_search import ContinuousSearch
    from lingua_flax.serving.ctranslate2_search import CTranslate2Search


@dataclasses.dataclass
class Engine:
    """Translates with a translator for each target language, from any of the run's; `workers` batches at a time."""

    translators: Mapping[str, Translator]
    searcher: ContinuousSearch | CTranslate2Search
    options: DecodingOptions
    alignment: AlignmentOptions
    workers: int

    def translator(self, languages: tuple[str, str], glossary: Glossary | None) -> Translator:
        """Returns the translator between languages; raises UserError if the network has no place for a glossary."""
        translator = dataclasses.replace(self.translators[languages[1]], languages=languages)
        return translator.with_glossary(glossary) if glossary else translator

    def align(
        self, translator: Translator, translations: Sequence[Translation], wanted: Sequence[bool]
    ) -> list[list[Link]]:
        """Returns the links between lines and their best translations where they are wanted."""
        return align_translations(translator, translations, self.alignment, wanted)

    def cost(self, part: Part) -> int:
        """Returns what a search costs: tokens times beams."""
        return len(part.source) * self.options.beam_size

    @functools.cached_property
    def max_length(self) -> int:
        """The longest sentence that the translators take, in tokens."""
        return next(iter(self.translators.values())).max_length

    @property
    def max_cost(self) -> int:
        """What the longest sentence costs."""
        return self.max_length * self.options.beam_size

    def padded_length(self, part: Part) -> int:
        """Returns the length for which a part is padded; parts of one length are searched together."""
        return self._padded_lengths[len(part.source)]

    @functools.cached_property
    def _padded_lengths(self) -> list[int]:
        """By the number of tokens: a table, since a request has up to 160,000 parts."""
        buckets = bucket_lengths(self.max_length)
        return [next(length for length in buckets if length >= size) for size in range(self.max_length + 1)]
