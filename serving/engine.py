"""What translates for the server: the networks of a run, one translator for each target language."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data.tokenizer import language_tag
from options.schema import Config, DecodingOptions
from translation.hypotheses import Hypothesis
from translation.translator import Translator


class Item(NamedTuple):
    """A line to translate.

    Attributes:
      line: the text, without line breaks.
      target: language to translate into.
      num_hypotheses: number of translations wanted.
    """

    line: str
    target: str
    num_hypotheses: int


class Engine:
    """Translates batches of lines into the languages that the network was trained for."""

    def __init__(self, translators: Mapping[str, Translator], options: DecodingOptions):
        """Creates an engine.

        Args:
          translators: a translator for each target language.
          options: how to decode.
        """
        self._translators = translators
        self._options = options

    @property
    def max_batch(self) -> int:
        """The number of lines that are translated together."""
        return next(iter(self._translators.values())).batch_size

    def translate(self, items: Sequence[Item]) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each item, best first; an empty line has an empty one."""
        results: dict[int, list[Hypothesis]] = {}
        for target, translator in self._translators.items():
            own = [index for index, item in enumerate(items) if item.target == target]
            if not own:
                continue
            count = max(items[index].num_hypotheses for index in own)
            translations = translator.translate(
                [items[index].line for index in own], self._options, num_hypotheses=count, first_line=None
            )
            for index, translation in zip(own, translations, strict=True):
                results[index] = list(translation.hypotheses[: items[index].num_hypotheses])
        return [results[index] for index in range(len(items))]

    def warm_up(self) -> None:
        """Compiles the programs for all lengths and batch sizes, so that no request waits for it."""
        first, *_ = self._translators.values()  # the others have the same programs
        first.warm_up_all(self._options)


def load_engine(translator: Translator, config: Config, options: DecodingOptions) -> Engine:
    """Returns the engine of a run, given a translator into its main target language."""
    data = config.data
    if not data.tag_target:
        return Engine({data.target_language: translator}, options)
    untagged = dataclasses.replace(translator.tokenizer, source_tags=())
    return Engine(
        {
            language: dataclasses.replace(translator, tokenizer=untagged.with_source_tag(language_tag(language)))
            for language in data.target_languages
        },
        options,
    )
