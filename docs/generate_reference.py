"""Writes pages of the site that are made of the code and not stored: all options, all commands and all files.

docs/conf.py calls `write` before Sphinx reads the pages.
"""

import ast
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from lingua_flax.__main__ import COMMANDS, function_name
from lingua_flax.options.command_line import NO_NAME, NO_VALUE
from lingua_flax.options.schema import CHANGEABLE, MAX_COUNT, MAX_FLOAT, Config, Section, section_of

DOCS = Path(__file__).parent
PACKAGES = ("model", "data", "lingua_flax", "docs", "notebooks")
KINDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true` or `false`"}
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def write() -> None:
    """Writes the pages into docs/reference."""
    pages = {"options": options_page(), "commands": commands_page(), "files": files_page()}
    for name, lines in pages.items():
        (DOCS / "reference" / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def options_page() -> Iterator[str]:
    """Yields the lines of the page of all options of a config file."""
    yield "# Options\n"
    yield "On the command line, an option is written as `--section.field VALUE`, with dashes or underscores.\n"
    yield f"A path {CHANGEABLE}, but not the content of its file.\n"
    yield from config_reference(Config)


def commands_page() -> Iterator[str]:
    """Yields the lines of the page of all commands."""
    yield "# Commands\n"
    for name, purpose in COMMANDS.items():
        yield from (f"## lingua-flax {name}\n", f"{purpose[0].upper()}{purpose[1:]}.\n")
        yield from command_reference(command_class(name))


def command_class(name: str) -> type[Section]:
    """Returns the class of a command's options."""
    module = import_module(f"lingua_flax.commands.{function_name(name)}")
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return next(each for each in classes if issubclass(each, Section) and each.__name__.endswith("Command"))


def files_page() -> Iterator[str]:
    """Yields the lines of the page of all modules, each with the first sentence of its docstring."""
    yield "# Files\n"
    for package in PACKAGES:
        for file in sorted((DOCS.parent / package).rglob("*.py")):
            text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            if text and "_build" not in file.parts:
                yield f"- `{file.relative_to(DOCS.parent)}`: {_prose(text.partition(chr(10) * 2)[0])}"


def config_reference(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yields the lines of the reference of a table of a config: its options, and then the tables in it."""
    properties = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        if not section_of(field):
            facts = _facts(properties[name], field) + f", {CHANGEABLE}" * (CHANGEABLE in field.metadata)
            yield from (f"### {prefix}{name}", "", f"{facts}.", "")
            yield from (_prose(field.description), "")
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            label = f"[{prefix}{name}]"
            if typing.get_origin(field.annotation) is tuple:  # an array of tables
                label = f"[{label}]"
            yield from (f"## `{label}`", "", _prose(field.description or inner.__doc__), "")
            yield from (f"All of it {CHANGEABLE}.", "") * (CHANGEABLE in field.metadata)
            yield from config_reference(inner, f"{prefix}{name}.")


def command_reference(command: type[Section]) -> Iterator[str]:
    """Yields the lines of the reference of a command's options."""
    properties = command.model_json_schema()["properties"]
    own_first = sorted(command.model_fields.items(), key=lambda item: item[0] not in command.__annotations__)
    for name, field in own_first:
        if not section_of(field):
            facts = "" if NO_VALUE in field.metadata else _facts(properties[field.alias or name], field)
            option = "PATH ..." if NO_NAME in field.metadata else f"--{(field.alias or name).replace('_', '-')}"
            entry = f"- `{option}`{facts and f' ({facts[0].lower()}{facts[1:]})'}: {_prose(field.description)}"
            yield textwrap.fill(" ".join(entry.split()), 120, subsequent_indent="  ", break_on_hyphens=False)
    tables = [f"`--{name}.*`" for name, field in command.model_fields.items() if section_of(field)]
    if tables:
        yield f"- {', '.join(tables)}: [options of the config](options.md)."
    yield ""


def _facts(schema: dict[str, Any], field: FieldInfo) -> str:
    """Returns type, bounds and default of a field, beginning with a capital letter unless a value comes first."""
    facts = [_kind(part) for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    if field.is_required():
        facts.append("required")
    elif (default := field.get_default(call_default_factory=True)) not in (None, ()):
        facts.append(f"default `{json.dumps(default)}`")
    text = ", ".join(facts)
    return text[0].upper() + text[1:]


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return " or ".join(f'`"{value}"`' for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}s"
    word = "path" if schema.get("format") == "path" else KINDS[schema["type"]]
    bounds = [
        f"{phrase} {schema[key]:g}"
        for key, phrase in BOUNDS.items()
        if key in schema and abs(schema[key]) not in (MAX_COUNT, MAX_FLOAT)
    ]
    return " ".join([word, " and ".join(bounds)]).strip()


def _prose(description: str | None) -> str:
    """Returns a docstring as a paragraph of Markdown; nothing in it is markup."""
    escaped = re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join((description or "").split()))
    return textwrap.fill(escaped, 120, break_long_words=False, break_on_hyphens=False)
