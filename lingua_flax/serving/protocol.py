"""The parameters of requests: those of LibreTranslate, as JSON, as a form or in the query string, and of /inspect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request

from lingua_flax.inspection.interventions import Head, Intervention
from lingua_flax.serving.inspector import InspectParameters


class RequestError(Exception):
    """A refused request: its HTTP status, and the seconds after which the client may try again, if it may."""

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Limits(NamedTuple):
    """What a single request may ask for.

    Attributes:
      texts: number of texts in a list.
      characters: length of each text.
      beam_size: number of hypotheses that a search keeps.
    """

    texts: int
    characters: int
    beam_size: int


class TranslateParameters(NamedTuple):
    """The parameters of POST /translate.

    Attributes:
      is_list: whether the texts were given as a list, so that the answer is one too.
      source: code of the language to translate from, or auto.
      alternatives: number of further translations of each text.
      alignments: whether to align the words of each text with those of its translation.
    """

    texts: list[str]
    is_list: bool
    source: str
    target: str
    alternatives: int
    alignments: bool


async def read_parameters(request: Request) -> Mapping[str, Any]:
    """Returns the parameters of a request; raises RequestError if its body is not valid."""
    if request.headers.get("content-type", "").split(";")[0].strip() == "application/json":
        try:
            content = json.loads(await request.body())
            json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError) as error:
            raise RequestError(400, "Invalid JSON format") from error
        if not isinstance(content, dict):
            raise RequestError(400, "Invalid JSON format")
        return content
    form = await request.form()
    return {**request.query_params, **{name: value for name, value in form.items() if isinstance(value, str)}}


def translate_parameters(values: Mapping[str, Any], limits: Limits) -> TranslateParameters:
    """Checks the parameters of POST /translate; raises RequestError if one is missing, invalid or exceeds a limit."""
    for name in ("q", "source", "target"):
        if not values.get(name):
            raise RequestError(400, f"Invalid request: missing {name} parameter")
    q = values["q"]
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(value, str) for value in (*texts, values["source"], values["target"])):
        raise RequestError(400, "Invalid request: q must be a text or a list of texts, source and target texts")
    if len(texts) > limits.texts:
        raise RequestError(413, f"Invalid request: {len(texts):,} texts exceed the limit of {limits.texts:,}")
    if longest := next((len(text) for text in texts if len(text) > limits.characters), None):
        raise RequestError(413, f"Invalid request: {longest:,} characters exceed the limit of {limits.characters:,}")
    if values.get("format") not in (None, "", "text"):
        raise RequestError(400, f"{values['format']} format is not supported, only text")
    return TranslateParameters(
        texts,
        isinstance(q, list),
        values["source"],
        values["target"],
        _alternatives(values, limits),
        _flag(values, "alignments"),
    )


def inspect_parameters(values: Mapping[str, Any], limits: Limits) -> InspectParameters:
    """Checks types and sizes of the parameters of POST /inspect; raises RequestError if one is missing or invalid."""
    text = values.get("q")
    if not isinstance(text, str) or not text.strip():
        raise RequestError(400, "Invalid request: q must be a text")
    if len(text) > limits.characters:
        raise RequestError(413, f"Invalid request: {len(text):,} characters exceed the limit of {limits.characters:,}")
    numbers = {name: values.get(name, []) for name in ("prefix", "hidden")}
    for name, given in numbers.items():
        if not isinstance(given, list) or not all(type(number) is int for number in given):
            raise RequestError(400, f"Invalid request: {name} must be a list of integers")
    checkpoint = values.get("checkpoint")
    if checkpoint not in (None, "") and not (type(checkpoint) is int and checkpoint > 0):
        raise RequestError(400, "Invalid request: checkpoint must be the number of a step")
    if not isinstance(values.get("target", ""), str):
        raise RequestError(400, "Invalid request: target must be a text")
    heads = values.get("heads_off", [])
    if not isinstance(heads, list) or not all(map(_is_head, heads)):
        raise RequestError(
            400,
            "Invalid request: heads_off must be a list of objects with attention (encoder, decoder or cross), layer "
            "and head",
        )
    intervention = Intervention(
        tuple(numbers["prefix"]),
        tuple(numbers["hidden"]),
        tuple(Head(head["attention"], head["layer"], head["head"]) for head in heads),
    )
    return InspectParameters(text, values.get("target", ""), intervention, _flag(values, "beam"), str(checkpoint or ""))


def _is_head(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("attention") in ("encoder", "decoder", "cross")
        and all(type(value.get(name)) is int for name in ("layer", "head"))
    )


def detect_parameter(values: Mapping[str, Any]) -> str:
    """Returns the text of POST /detect; raises RequestError if it is missing."""
    if not isinstance(values.get("q"), str) or not values["q"]:
        raise RequestError(400, "Invalid request: missing q parameter")
    return values["q"]


def _alternatives(values: Mapping[str, Any], limits: Limits) -> int:
    try:
        alternatives = int(values.get("alternatives") or 0)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(400, "Invalid request: alternatives parameter is not a number") from error
    if alternatives >= limits.beam_size:
        raise RequestError(
            400, f"Invalid request: alternatives parameter must be below the beam size {limits.beam_size}"
        )
    return max(0, alternatives)


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = str(values.get(name) or "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise RequestError(400, f"Invalid request: {name} parameter must be true or false")
    return value in ("true", "1")
