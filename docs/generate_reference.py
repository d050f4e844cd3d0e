"""Writes the options into docs/reference/options.md and docs/reference/commands.md (`make docs`).

Both pages are stored with the options; a test compares them with the schema. A list of options stands between the
comments <!-- options of lingua_flax.commands.evaluate.EvaluateCommand -->, which names a class, and <!-- end -->. Those
of a config are listed by table, such as [data]; a command refers to them instead of repeating them.
"""

import importlib
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from lingua_flax.options.command_line import NO_NAME, NO_VALUE
from lingua_flax.options.schema import MAX_COUNT, MAX_FLOAT, Config, Section, section_of

PAGES = [Path(__file__).parent / "reference" / name for name in ("options.md", "commands.md")]
LIST = re.compile(r"(?<=<!-- options of )([\w.]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
KINDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true` or `false`"}
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def with_options(page: str) -> str:
    """Returns the text of a page with the options as they are now."""

    def replace(match: re.Match[str]) -> str:
        module, _, name = match[1].rpartition(".")
        section = getattr(importlib.import_module(module), name)
        lines = config_reference(section) if section is Config else command_reference(section)
        return match[1] + match[2] + "\n" + "\n".join(lines) + "\n"

    return LIST.sub(replace, page)


def config_reference(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yields the lines of the reference of a table of a config: its options, and then the tables in it."""
    properties = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        if not section_of(field):
            yield from (f"### {prefix}{name}", "", f"{_facts(properties[name], field)}.", "")
            yield from (_prose(field.description), "")
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            label = f"[{prefix}{name}]"
            if typing.get_origin(field.annotation) is tuple:  # an array of tables
                label = f"[{label}]"
            yield from (f"## `{label}`", "", _prose(field.description or inner.__doc__), "")
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


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_options(page.read_text(encoding="utf-8")), encoding="utf-8")
