"""The engine of the server, which translates batches of lines as lingua-flax translate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lingua_flax.data.glossary import Glossary
from lingua_flax.options.schema import AlignmentOptions, DecodingOptions
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link, align_translations


class Item(NamedTuple):
    """A line to translate, without line breaks.

    `num_hypotheses` translations are wanted; if `aligned`, the best one is to be aligned.
    """

    line: str
    target: str
    num_hypotheses: int = 1
    aligned: bool = False
    glossary: Glossary | None = None


class Result(NamedTuple):
    """The translations of a line.

    Attributes:
      texts: at least one and at most as many as wanted, best first; that of an empty line is empty.
      links: between the line and the best translation, if they are to be aligned.
    """

    texts: list[str]
    links: list[Link] = []  # noqa: RUF012 (never changed)


class Engine:
    """Translates with one translator for each target language; programs that align words are compiled when needed.

    Attributes:
      max_batch: number of lines that are translated together.
      workers: number of batches that are translated at the same time.
      takes_glossaries: whether the network has placeholders, which stand for the terms of glossaries.
    """

    def __init__(
        self,
        translators: Mapping[str, Translator],
        options: DecodingOptions,
        alignment: AlignmentOptions = AlignmentOptions(),
        *,
        max_batch: int,
        workers: int = 1,
    ):
        self.max_batch, self.workers = max_batch, workers
        self.takes_glossaries = all(own.tokenizer.placeholders for own in translators.values())
        self._translators, self._options, self._alignment = translators, options, alignment

    def translate(self, items: Sequence[Item]) -> list[Result]:
        """Translates the items, in order."""
        results: dict[int, Result] = {}
        for way in dict.fromkeys((item.target, item.glossary) for item in items):
            numbers = [number for number, item in enumerate(items) if (item.target, item.glossary) == way]
            results |= zip(numbers, self._translate([items[number] for number in numbers], *way), strict=True)
        return [results[number] for number in range(len(items))]

    def _translate(self, items: Sequence[Item], target: str, glossary: Glossary | None) -> list[Result]:
        translator = self._translators[target]
        if glossary:
            translator = translator.with_glossary(glossary)
        lines, count = [item.line for item in items], max(item.num_hypotheses for item in items)
        translations = translator.translate(lines, self._options, num_hypotheses=count, warn=False)
        aligned = [own for item, own in zip(items, translations, strict=True) if item.aligned]
        links = iter(align_translations(translator, aligned, self._alignment))
        return [
            Result([each.text for each in own.hypotheses[: item.num_hypotheses]], next(links) if item.aligned else [])
            for item, own in zip(items, translations, strict=True)
        ]
