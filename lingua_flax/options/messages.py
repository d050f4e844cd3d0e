"""One-sentence messages for mistakes in options, in config files as well as on the command line."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
from pydantic.fields import FieldInfo

from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import Config, MixtureConfig, Section, SectionType, section_of


def validated(section: type[SectionType], values: Mapping[str, Any]) -> SectionType:
    """Returns a section with the given values; raises UserError, with one sentence, if one is unknown or invalid."""
    try:
        return section(**values)
    except pydantic.ValidationError as error:
        raise UserError(validation_message(error, section)) from error


def suggestion(name: str, section: type[Section], prefix: str = "") -> str:
    """Returns "; did you mean model.num_heads?" or "", with the prefix "--" spelled as on the command line."""
    number = next(iter(re.findall(r"\.(\d+)\.", name)), "0")
    known = [field_name.replace("#", number) for field_name, _ in all_fields(section)]
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not matches:  # a field without its section, or in the wrong one
        matches = [full for full in known if full.split(".")[-1] == name.split(".")[-1]]
    meant = [prefix + (match.replace("_", "-") if prefix else match) for match in matches[:1]]
    return f"; did you mean {meant[0]}?" if meant else ""


def all_fields(section: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Yields all fields and their dotted names, with "#" for the index of an entry, as in data.mixture.#.name."""
    for name, field in section.model_fields.items():
        yield field.alias or name, field
        if inner := section_of(field):
            prefix = f"{name}.#" if inner is MixtureConfig else name
            yield from ((f"{prefix}.{inner_name}", inner_field) for inner_name, inner_field in all_fields(inner))


def validation_message(error: pydantic.ValidationError, section: type[Section] = Config) -> str:
    """Returns one sentence for the first error: the field, among those of the section, what is wrong, and the value."""
    first = error.errors()[0]
    kind, value, name = first["type"], first["input"], ".".join(map(str, first["loc"]))
    if kind == "extra_forbidden":
        return f"unknown option {name}{suggestion(name, section)}"
    if kind == "missing":
        purpose = " ".join((section.model_fields[name].description or "").split()).partition(". ")[0].rstrip(".")
        return f"--{name.replace('_', '-')} is required: {purpose[:1].lower()}{purpose[1:]}"
    message = _PHRASES.get(kind, first["msg"].removeprefix("Value error, "))
    if kind == "value_error":
        return f"{name}: {message}" if name else message
    if not kind.startswith(("greater", "less")):  # the value is a number, even if the command line gives it as text
        value = f'"{value}"' if isinstance(value, str) else repr(value)
    return f"{name}: {message[0].lower()}{message[1:]}, got {value}"


_PHRASES = {  # of pydantic's errors that do not say it as plainly, by their type
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be True or False",
}
