"""The directive `option-reference`, which lists the options of a section of options/schema.py or of a command.

    ```{option-reference} commands.evaluate.EvaluateCommand
    ```

Every field is listed with its type, bounds, default and docstring. The options of a config are listed by table, such as
[data]; a command refers to them instead of repeating them.
"""

from __future__ import annotations

import importlib
import json
import re
import typing
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from options.schema import MAX_COUNT, MAX_FLOAT, Config, Section

WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true` or `false`", "array": "list"}
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


class OptionReference(SphinxDirective):
    """Lists the options of a section, whose dotted name is the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        section = getattr(importlib.import_module(module), name)
        describe = config_reference if section is Config else command_reference
        return self.parse_text_to_nodes("\n".join(describe(section)), allow_section_headings=True)


def config_reference(config: type[Section]) -> Iterator[str]:
    """Yields the lines of the reference of a config file: a heading for each table, and its options."""
    for table, field in config.model_fields.items():
        section = section_of(field)
        assert section is not None
        yield from (f"## `[{table}]`", "", _as_text(section.__doc__), "")
        yield from _table_options(section, table)


def _table_options(section: type[Section], table: str) -> Iterator[str]:
    properties = section.model_json_schema()["properties"]
    nested = {}
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            nested[name] = inner
        else:
            yield f"(option-{table}.{name})="
            yield from _option(f"{table}.{name}", properties[name], field)
    for name, inner in nested.items():
        is_array = typing.get_origin(section.model_fields[name].annotation) is tuple
        label = f"[[{table}.{name}]]" if is_array else f"[{table}.{name}]"
        description = section.model_fields[name].description or inner.__doc__
        yield from (f"### `{label}`", "", _as_text(description), "")
        yield from _table_options(inner, f"{table}.{name}")


def command_reference(command: type[Section]) -> Iterator[str]:
    """Yields the lines of the reference of a command's options."""
    properties = command.model_json_schema()["properties"]
    config_options = []
    for name, field in command.model_fields.items():
        if section_of(field):
            config_options.append(f"`--{name}.*`")
        else:
            yield from _option(f"--{option_name(name, field)}", properties[name], field)
    if config_options:
        yield from (f"{', '.join(config_options)}", ": [Options of the config](options.md).", "")


def option_name(name: str, field: FieldInfo) -> str:
    """Returns the name of a command-line option, without the leading dashes."""
    renamed = next((item.name for item in field.metadata if getattr(item, "name", None)), None)
    return renamed or name.replace("_", "-")


def section_of(field: FieldInfo) -> type[Section] | None:
    """Returns the section that a field holds, or holds a list of, if any."""
    kinds = [field.annotation, *typing.get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _option(name: str, schema: dict[str, Any], field: FieldInfo) -> Iterator[str]:
    """Yields an entry of a definition list."""
    kinds = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
    facts = ", ".join(filter(None, [*map(_kind, kinds), default]))
    yield from (f"`{name}` ({facts})", f": {_as_text(field.description)}", "")


def _as_text(description: str | None) -> str:
    """Returns a docstring as one line of Markdown; nothing in it is markup."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join((description or "").split()))


def _kind(schema: dict[str, Any]) -> str:
    """Returns the type of a value in words, with its bounds."""
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    word = "path" if schema.get("format") == "path" else WORDS[schema["type"]]
    if schema["type"] == "array":
        item = _kind(schema["items"])
        return f"list of {item}s"
    bounds = [
        f"{phrase} {schema[key]:g}"
        for key, phrase in BOUNDS.items()
        if key in schema and abs(schema[key]) not in (MAX_COUNT, MAX_FLOAT)
    ]
    return " ".join([word, " and ".join(bounds)]).strip()


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    return f"default `{json.dumps(value)}`"


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive."""
    app.add_directive("option-reference", OptionReference)
    return {"parallel_read_safe": True}
