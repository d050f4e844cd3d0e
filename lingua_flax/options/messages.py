"""One-sentence messages for mistakes in options, in config files as well as on the command line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pydantic

from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import Config, MixtureConfig, Section, section_of

SectionType = TypeVar("SectionType", bound=Section)


def validated(section: type[SectionType], values: Mapping[str, Any]) -> SectionType:
    """Returns a section with the given values; raises UserError, with one sentence, if one is unknown or invalid."""
    try:
        return section(**values)
    except pydantic.ValidationError as error:
        raise UserError(validation_message(error, root=section)) from error


def suggestion(name: str, section: type[Section], prefix: str = "") -> str:
    """Returns the end of a message that suggests the option probably meant: "; did you mean model.num_heads?"

    It is empty if no option of the section is similar. With the prefix "--", it is spelled like an option of the
    command line, with hyphens.
    """
    number = next(iter(re.findall(r"\.(\d+)\.", name)), "0")
    known = [field.replace("#", number) for field in field_names(section)]
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not match:  # a field without its section, or in the wrong one
        match = [full for full in known if full.rsplit(".")[-1] == name.rsplit(".")[-1]][:1]
    if not match:
        return ""
    return f"; did you mean {prefix}{match[0].replace('_', '-') if prefix else match[0]}?"


def field_names(section: type[Section]) -> Iterator[str]:
    """Yields all field names, with "#" for the index of an entry: data, data.name, ..., data.mixture.#.name, ..."""
    for name, field in section.model_fields.items():
        yield name
        if inner := section_of(field):
            prefix = f"{name}.#" if inner is MixtureConfig else name
            yield from (f"{prefix}.{field_name}" for field_name in field_names(inner))


def without_index(name: str) -> str:
    """Returns a field name with "#" instead of the index of an entry, as in `field_names`."""
    return re.sub(r"\.\d+\.", ".#.", name)


def validation_message(
    error: pydantic.ValidationError, section: str | None = None, *, root: type[Section] = Config
) -> str:
    """Returns one sentence for the first error of a validation: the field, what is wrong, and the value given.

    The section that was validated is by default found by the name of its class; `root` has all options to suggest.
    """
    first = error.errors()[0]
    section = section or _section_of(error.title)
    name = ".".join(filter(None, [section, *(str(part) for part in first["loc"])]))
    if first["type"] == "extra_forbidden":
        return f"unknown option {name}{suggestion(name, root)}"
    if first["type"] == "missing":
        return f"--{name.replace('_', '-')} is required"
    message = _PHRASES.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"] == "value_error":
        return f"{name}: {message}" if name else message
    is_number = first["type"].startswith(("greater", "less"))  # also if the command line gives it as text
    value = first["input"] if is_number else _quoted(first["input"])
    return f"{name}: {message[0].lower()}{message[1:]}, got {value}"


_PHRASES = {  # of pydantic's errors that do not say it as plainly, by their type
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be True or False",
}


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _section_of(title: str) -> str:
    """Returns the dotted name of the section with this class name, or "" if it is the config itself or unknown."""
    for name, field in Config.model_fields.items():
        if getattr(field.annotation, "__name__", None) == title:
            return name
    return {"MeshConfig": "devices.mesh"}.get(title, "")
