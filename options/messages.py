"""From TOML files and the command line to a validated config, and from any mistake in them to one sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pydantic

from host.errors import UserError
from options.schema import (
    Config,
    MixtureConfig,
    Section,
)

SectionType = TypeVar("SectionType", bound=Section)


def validated(section: type[SectionType], values: Mapping[str, Any]) -> SectionType:
    """A section with these values.

    Raises:
      UserError: there is no such option, or a bad value, in one sentence.
    """
    try:
        return section(**values)
    except pydantic.ValidationError as error:
        raise UserError(message_of(error, root=section)) from error


def suggestion(name: str, section: type[Section], prefix: str = "") -> str:
    number = next(iter(re.findall(r"\.(\d+)\.", name)), "0")
    known = [field.replace("#", number) for field in field_names(section)]
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not match:  # a field given without its section, or in another one
        match = [full for full in known if full.rsplit(".")[-1] == name.rsplit(".")[-1]][:1]
    if not match:
        return ""
    return f"; did you mean {prefix}{match[0].replace('_', '-') if prefix else match[0]}?"


def field_names(section: type[Section]) -> Iterator[str]:
    """All fields, with "#" for the number of an entry: data, data.name, ..., data.mixture, data.mixture.#.name, ..."""
    for name, field in section.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from (f"{name}.{inner}" for inner in field_names(field.annotation))
        elif field.annotation == tuple[MixtureConfig, ...]:
            yield from (f"{name}.#.{inner}" for inner in field_names(MixtureConfig))


def without_index(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)


def message_of(error: pydantic.ValidationError, section: str | None = None, *, root: type[Section] = Config) -> str:
    """The first of a validation's errors: field, what is wrong, the value given. root has the fields there are."""
    first = error.errors()[0]
    section = section or _section_of(error.title)
    name = ".".join(filter(None, [section, *(str(part) for part in first["loc"])]))
    if first["type"] == "extra_forbidden":
        return f"unknown option {name}{suggestion(name, root)}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{name}: {message}" if name else message
    return f"{name}: {message[0].lower()}{message[1:]}, got {_shown(first['input'])}"


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _section_of(title: str) -> str:
    for name, field in Config.model_fields.items():
        if getattr(field.annotation, "__name__", None) == title:
            return name
    return {"MeshConfig": "devices.mesh"}.get(title, "")
