"""Answers POST /inspect: what the network does with one sentence, at any checkpoint of the run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lingua_flax.inspection.interventions import Intervention, inspect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator

CHECKPOINTS_IN_MEMORY = 4


class InspectParameters(NamedTuple):
    """The parameters of POST /inspect.

    Attributes:
      target: code of the language to translate into; "" for the first.
      record_beam: whether to record the beam search, which takes some times longer.
      checkpoint: the step of a checkpoint; "" for the one that is served.
    """

    text: str
    target: str
    intervention: Intervention
    record_beam: bool
    checkpoint: str


class Inspector:
    """Inspects sentences with JAX."""

    def __init__(
        self,
        translators: Mapping[str, Translator],
        options: DecodingOptions,
        load: Callable[[str], Mapping[str, Translator]],
    ):
        """Creates an inspector with a translator for each target language.

        `load` loads the translators of another checkpoint, and raises UserError if that does not exist.
        """
        self._translators = translators
        self._options = options
        self._load = functools.lru_cache(CHECKPOINTS_IN_MEMORY)(load)

    def __call__(self, items: Sequence[InspectParameters]) -> list[dict[str, Any]]:
        """Returns a JSON object for each item.

        Raises UserError if an item names something that does not exist, or its text has no token or too many.
        """
        return [self._inspect(item) for item in items]

    def _inspect(self, item: InspectParameters) -> dict[str, Any]:
        translators = self._load(item.checkpoint) if item.checkpoint else self._translators
        translator = translators[item.target or next(iter(translators))]
        inspection = inspect(translator, item.text, self._options, item.intervention, record_beam=item.record_beam)
        return {**inspection.as_json(translator.tokenizer), "checkpoint": translator.step}
