"""The parameters of requests: those of LibreTranslate, as JSON, as a form or in the query string, and of /inspect."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import parse_qsl

import pydantic
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, StrictInt, TypeAdapter, WithJsonSchema
from pydantic.functional_validators import field_validator, model_validator
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from lingua_flax.inspection.explanation import Head, Place
from lingua_flax.options.messages import validation_message

SENTENCE = "Two dogs are playing in the snow."


class Limits(NamedTuple):
    """What a single request may ask for: texts in a list, and characters of each."""

    texts: int
    characters: int


def check_size(size: int, unit: str, limit: int) -> None:
    """Raises HTTPException if the size of a request exceeds a limit of the server."""
    if size > limit:
        raise HTTPException(413, f"Invalid request: {size:,} {unit} exceed the limit of {limit:,}")


def unavailable(reason: str, status: int = 503) -> HTTPException:
    """Returns the answer to a request that may succeed later."""
    return HTTPException(status, reason, {"Retry-After": "1"})  # seconds


class Parameters(BaseModel):
    """The parameters of a request; others are ignored."""

    content_types: ClassVar[tuple[str, ...]] = ("application/json",)
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @classmethod
    async def read(cls, request: Request) -> Self:
        """Returns the parameters of a request; raises HTTPException if one is missing or invalid."""
        try:
            return cls.model_validate(await _values(request))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            message = f"missing {name} parameter" if first["type"] == "missing" else validation_message(error)
            raise HTTPException(400, f"Invalid request: {message}") from error

    @classmethod
    def body(cls, sentence: str | None = None) -> dict[str, Any]:
        """Returns the OpenAPI description of a body, with an example of `q` if given."""
        schema = cls.model_json_schema()
        if sentence:
            schema["properties"]["q"]["examples"] = [sentence]
        content = {content_type: {"schema": schema} for content_type in cls.content_types}
        return {"requestBody": {"required": True, "content": content}}


class DetectRequest(Parameters):
    """Texts whose language is to be detected."""

    content_types = ("application/json", "application/x-www-form-urlencoded")

    q: Annotated[str | list[str], Field(examples=[SENTENCE])]
    """A text, or a list of texts."""
    api_key: SkipValidation[str] = ""
    """Accepted and ignored."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Mapping[str, Any]) -> dict[str, Any]:  # which LibreTranslate takes for none
        return {name: value for name, value in values.items() if value not in (None, "", [])}

    @field_validator("q", mode="before")
    @classmethod
    def _is_text_or_texts(cls, q: Any) -> Any:  # in one sentence, where a union would explain each of its types
        if not all(isinstance(text, str) for text in (q if isinstance(q, list) else [q])):
            raise ValueError("must be a text or a list of texts")
        return q

    @property
    def texts(self) -> list[str]:
        """The texts, also if a single one was given."""
        return [self.q] if isinstance(self.q, str) else self.q


class TranslateRequest(DetectRequest):
    """Texts to translate."""

    source: Annotated[str, Field(examples=["auto"])]
    """Language code, or auto."""
    target: Annotated[str, Field(examples=["fr"])]
    """Language code."""
    format: Literal["text", "html"] = "text"
    """With html, tags stay, and stand around the translations of their words."""
    alternatives: Annotated[int, Field(ge=0)] = 0
    """Number of further translations; there are fewer if the beam is smaller."""
    alignments: bool = False
    """Align words, in Pharaoh format."""
    glossary: dict[Annotated[str, Field(pattern=r"\S")], str] = {}
    """Terms and their translations, as a JSON object."""

    @model_validator(mode="after")
    def _aligns_words_of_text(self) -> Self:
        if self.format == "html" and self.alignments:
            raise ValueError("alignments are those of words in a text, not in HTML")
        return self

    @field_validator("glossary", mode="before")
    @classmethod
    def _reads_json(cls, glossary: Any) -> Any:  # of a form
        return _json_object(glossary) if isinstance(glossary, str) else glossary

    @property
    def plain_text(self) -> str:
        """The texts together, without tags."""
        text = "\n".join(self.texts)
        return re.sub(r"<[^<>]*>", " ", text) if self.format == "html" else text

    def check(self, limits: Limits) -> None:
        """Raises HTTPException if more is asked for than the server allows."""
        check_size(len(self.texts), "texts", limits.texts)
        check_size(max(map(len, self.texts)), "characters", limits.characters)


class FileRequest(Parameters):
    """A file to translate."""

    content_types = ("multipart/form-data",)
    model_config = ConfigDict(arbitrary_types_allowed=True)

    file: Annotated[UploadFile, WithJsonSchema({"type": "string", "format": "binary"})]
    """A document, of a format that its name tells."""
    source: Annotated[str, Field(examples=["auto"])]
    """Language code, or auto."""
    target: Annotated[str, Field(examples=["fr"])]
    """Language code."""
    api_key: SkipValidation[str] = ""
    """Accepted and ignored."""


class InspectRequest(Parameters):
    """A sentence to inspect."""

    q: Annotated[str, Field(pattern=r"\S", examples=[SENTENCE])]
    """A sentence, or several; each line is translated by itself."""
    sentence: Annotated[StrictInt, Field(ge=0)] = 0
    """Which of the sentences to inspect, counted from 0."""
    target: str = ""
    """Language code; by default the first target language."""
    prefix: list[StrictInt] = []
    """Token ids that the translation begins with."""
    masked: list[StrictInt] = []
    """Positions of source tokens that no layer may attend to."""
    # A reference to the schema of a head would lead nowhere in that of the whole interface.
    heads_off: list[Annotated[Head, WithJsonSchema(TypeAdapter(Head).json_schema())]] = []
    """Heads that are switched off, counted from 0."""
    beam: bool = False
    """Record the beam search."""
    explain: Annotated[Place, WithJsonSchema(TypeAdapter(Place).json_schema())] | None = None
    """Where to say how the attention weights come about, counted from 0."""
    checkpoint: Annotated[StrictInt, Field(gt=0)] | None = None
    """Step; by default the checkpoint that is served."""

    def check(self, limits: Limits) -> None:
        """Raises HTTPException if the text is longer than the server allows."""
        check_size(len(self.q), "characters", limits.characters)


async def _values(request: Request) -> dict[str, Any]:
    body = await request.body()  # all of it, so that a client that still sends can read the answer
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    is_json = content_type == "application/json"
    try:
        if is_json:
            return _json_object(body)
        values = _fields(request.scope["query_string"])
        if content_type == "application/x-www-form-urlencoded":
            return values | _fields(body)
        form = await request.form()
        fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        "".join(value for _, value in fields).encode()  # fails for half of a surrogate pair, which some can express
        files = {name: value for name, value in form.items() if isinstance(value, UploadFile) and name == "file"}
        return values | _collected(fields) | files
    except ValueError as error:
        raise HTTPException(400, "Invalid JSON format" if is_json else "Invalid form or query string") from error


def _json_object(encoded: bytes | str) -> dict[str, Any]:
    """Returns an object; raises ValueError for any other value, deep nesting, and halves of surrogate pairs."""
    try:
        content = {**json.loads(encoded)}
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError("Invalid JSON format") from error
    return content


def _fields(encoded: bytes) -> dict[str, str | list[str]]:
    """Returns the fields of a form; raises ValueError if they are not UTF-8, escaped or not, or too many."""
    return _collected(parse_qsl(encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000))


def _collected(fields: Sequence[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Returns fields by their names: of several texts all, of another field the last."""
    texts = [value for name, value in fields if name == "q"]
    return dict(fields) | ({"q": texts} if len(texts) > 1 else {})
