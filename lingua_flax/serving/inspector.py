"""Answers POST /inspect: what the network does with one sentence, at any checkpoint of the run."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.interventions import Intervention, inspect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.serving.protocol import InspectRequest
from lingua_flax.translation.line_splitting import divide_text
from lingua_flax.translation.translator import Translator


def inspected(
    translators: Mapping[str, Translator],
    load: Callable[[str], Mapping[str, Translator]],
    options: DecodingOptions,
    item: InspectRequest,
    after_batch: Callable[[int], None],
) -> dict[str, Any]:
    """Returns the answer with translators into each language, or with what `load` returns for another checkpoint."""
    translators = load(str(item.checkpoint)) if item.checkpoint else translators
    translator = translators[item.target or next(iter(translators))]
    intervention = Intervention(tuple(item.prefix), tuple(item.masked), tuple(item.heads_off))
    sentences = _sentences(item.q, translator, options, after_batch)
    texts = [own["source"] for own in sentences] or [item.q.strip()]
    if item.sentence >= len(texts):
        raise UserError(f"there is no sentence {item.sentence}: the text has {len(texts)}")
    text = texts[item.sentence]
    (parts,) = divide_text(dataclasses.replace(translator, one_sentence_per_line=True), [text])
    if all(part.is_kept for part in parts):
        translation = "".join(part.protected.untranslated + part.after for part in parts)
        kept = {"text": text, "translation": translation, "kept": True}
        return {**kept, "checkpoint": translator.step, "sentences": sentences}
    inspection = inspect(translator, text, options, intervention, record_beam=item.beam, explained=item.explain)
    return {**inspection.as_json(translator.tokenizer), "checkpoint": translator.step, "sentences": sentences}


def _sentences(
    text: str, translator: Translator, options: DecodingOptions, after_batch: Callable[[int], None]
) -> list[dict[str, str]]:
    """Returns the sentences of a text, line by line, with their translations; none if it is a single one."""
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    if len(lines) == 1 and len(divide_text(translator, lines)[0]) == 1:
        return []
    translations = translator.translate(lines, options, warn=False, after_batch=after_batch)
    return [
        {"source": source, "translation": own.text}
        for line in translations
        for source, own in line.hypotheses[0].parts or [(line.source, line.hypotheses[0])]
    ]
