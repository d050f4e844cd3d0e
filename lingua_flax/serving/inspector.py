"""Answers POST /inspect: what the network does with one sentence, at any checkpoint of the run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.interventions import Intervention, inspect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.serving.protocol import InspectRequest
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.translator import Translator

CHECKPOINTS_IN_MEMORY = 4


class Inspector:
    """Inspects sentences with JAX."""

    def __init__(
        self,
        translators: Mapping[str, Translator],
        options: DecodingOptions,
        load: Callable[[str], Mapping[str, Translator]],
    ):
        """Takes a translator for each target language, and what loads those of another checkpoint."""
        self._translators, self._options = translators, options
        self._load = functools.lru_cache(CHECKPOINTS_IN_MEMORY)(load)

    def __call__(self, item: InspectRequest, after_batch: Callable[[int], None]) -> dict[str, Any]:
        """Returns a JSON object; raises UserError as `inspect` does, and whatever `after_batch` raises to stop."""
        translators = self._load(str(item.checkpoint)) if item.checkpoint else self._translators
        translator = translators[item.target or next(iter(translators))]
        intervention = Intervention(tuple(item.prefix), tuple(item.masked), tuple(item.heads_off))
        text, sentences = item.q.strip(), self._sentences(item.q, translator, after_batch)
        if sentences or item.sentence:
            if item.sentence >= max(1, len(sentences)):
                raise UserError(f"there is no sentence {item.sentence}: the text has {max(1, len(sentences))}")
            text = sentences[item.sentence]["source"]
        inspection = inspect(
            translator, text, self._options, intervention, record_beam=item.beam, explained=item.explain
        )
        return {**inspection.as_json(translator.tokenizer), "checkpoint": translator.step, "sentences": sentences}

    def _sentences(self, text: str, translator: Translator, after_batch: Callable[[int], None]) -> list[dict[str, str]]:
        """Returns the sentences of a text, line by line, with their translations; none if it is a single one."""
        lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
        divided = translator.divided(lines)
        if len(lines) == 1 and len(divided[0]) == 1:
            return []
        sentences: list[tuple[str, Hypothesis]] = []
        translations = translator.translate(lines, self._options, warn=False, after_batch=after_batch)
        for line, translation in zip(lines, translations, strict=True):
            best = translation.hypotheses[0]
            sentences += best.parts or [(line, best)]
        return [{"source": source, "translation": own.text} for source, own in sentences]
