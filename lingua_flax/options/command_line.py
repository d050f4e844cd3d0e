"""The command line: argparse finds the options that are given, pydantic checks their values as it does in files."""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Self, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lingua_flax.host.errors import UserError
from lingua_flax.host.files import check_writable
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import with_absolute_paths
from lingua_flax.options.messages import suggestion, validated
from lingua_flax.options.schema import Config, DataConfig, MixtureConfig, Section, SectionType, run_folder, section_of

Given = Mapping[str, Any]  # what a command line says, as text, by the dotted names of fields
NO_VALUE, ANY_VALUE, NO_NAME = "takes no value", "may have a value", "has no name"  # marks in the metadata of fields
Flag = Annotated[bool, NO_VALUE]  # an option --x; other booleans take True or False
Positional = Annotated[tuple[Path, ...], NO_NAME]  # given before the options
SHORT = {"training.init_from": "--init-from"}


class Command(Section):
    """The options of a command, in the order in which it comes to them: they are parsed, built and checked.

    The docstring of a subclass describes the command, for --help.
    """

    @classmethod
    def read(cls, argv: Sequence[str]) -> Self:
        """Returns the options of a command line, checked before anything that takes time is imported.

        Raises UserError if one is invalid, and SystemExit after --help or --version.
        """
        return cls.resolve(parse(cls, argv, cls.__doc__ or ""))

    @classmethod
    def resolve(cls, given: Given) -> Self:
        """Returns the options given, over the defaults; raises UserError as `read` does."""
        options = build(cls, given, **cls.defaults(given))
        options.check(given)
        return options

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        """Returns values for options that are not given, as from a config; UserError if this lacks what it needs."""
        return {}

    def check(self, given: Given) -> None:
        """Raises UserError if options contradict each other, files cannot be used or packages are missing."""


def parse(command: type[Section], argv: Sequence[str], description: str) -> Given:
    """Returns the options of a command, a section, that a command line gives; the description is for --help.

    Raises UserError if one is unknown, has no value or is given twice, and SystemExit after --help or --version.
    """
    has_positional = any(NO_NAME in field.metadata for field in command.model_fields.values())
    usage = f"%(prog)s {'PATH ... ' * has_positional}[OPTION ...]"
    parser = _Parser(sys.argv[0], usage, description, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"lingua-flax {VERSION}")
    indices = sorted({int(index) for index in re.findall(r"--data\.mixture\.(\d+)\.", " ".join(argv))})
    _add_options(parser, parser, command, "", indices)
    given, rest = parser.parse_known_args(list(argv))
    if rest and not rest[0].startswith("--"):
        raise UserError(f'unexpected argument "{rest[0]}"; options look like --training.num-steps 1000')
    if rest:
        option = rest[0].split("=")[0]
        raise UserError(f"unknown option {option}{suggestion(option[2:].replace('-', '_'), command, '--')}")
    return vars(given)


def build(command: type[SectionType], given: Given, **base: Any) -> SectionType:
    """Returns the options of a command: those given, over those in `base`, over the defaults.

    Raises UserError if a value is invalid, or an entry of a mixture is neither there nor the next one.
    """
    # Pydantic converts text.
    values = {name: each.model_dump() if isinstance(each, Section) else each for name, each in base.items()}
    for name, text in given.items():
        prefix, _, last = name.rpartition(".")
        section, table = _table(command, values, prefix)
        if last in getattr(section, "alternatives", ()):  # the one given replaces that of the config
            table.update({each: None for each in section.alternatives if f"{prefix}.{each}" not in given})
        field = next(field for each, field in section.model_fields.items() if last in (each, field.alias))
        table[last] = None if text == "None" and type(None) in get_args(field.annotation) else text
    return validated(command, values)


def _table(section: Any, table: Any, prefix: str) -> tuple[Any, Any]:
    """Returns the section with a dotted name and its table of values, which is created if there is none yet."""
    for part in prefix.split(".") if prefix else ():
        if not part.isdecimal():
            field = section.model_fields[part]
            is_list = get_origin(field.annotation) is tuple
            table[part] = list(table.get(part, ())) if is_list else table.get(part, {})
            section, table = section_of(field), table[part]
            continue
        if int(part) > len(table):
            raise UserError(f"--{prefix}: the next [[data.mixture]] that can be added has the number {len(table)}")
        if int(part) == len(table):
            table.append({})
        table = table[int(part)]
    return section, table


def config_of(options: Section) -> Config:
    """Returns the config, with absolute paths, that is part of the options of a command."""
    return with_absolute_paths(Config(**{name: getattr(options, name) for name in Config.model_fields}))


def required_workdir(given: Given) -> Path:
    """Returns --workdir; raises UserError if it is missing or empty."""
    if not given.get("workdir"):
        raise UserError("--workdir is required: the folder of the run, for example --workdir checkpoints/tiny")
    return run_folder(Path(given["workdir"]))


def new_output(given: Given, example: str) -> Path:
    """Returns --output, which does not exist yet and can be written; raises UserError otherwise."""
    if not given.get("output"):
        raise UserError(f"--output is required: {example}")
    output = Path(given["output"])
    check_new(output)
    return output


def check_new(output: Path) -> None:
    """Raises UserError unless --output does not exist yet and can be written."""
    if output.exists() or output.is_symlink():
        raise UserError(f"--output {output} exists already; delete it or choose another name")
    check_writable(output)


def refuse(given: Given, names: Iterable[str], reason: str) -> None:
    """Raises UserError if one of these options is given although it has no effect; the reason ends the sentence."""
    if name := next((name for name in names if name in given), None):
        raise UserError(f"--{name.replace('_', '-')} has no effect {reason}")


def check_languages(data: DataConfig, trained_on: DataConfig, workdir: Path) -> None:
    """Raises UserError unless a run, by its section [data], translates between the languages of a corpus."""
    if data.tag_target != trained_on.tag_target:
        raise UserError(f"--data.tag-target must remain {trained_on.tag_target}, as in {workdir}")
    wanted = (data.source_language, data.target_language)
    if not trained_on.tag_target and wanted not in trained_on.directions:
        known = " or ".join(f"{source} to {target}" for source, target in trained_on.directions)
        options = f"--data.source-language {wanted[0]} --data.target-language {wanted[1]}"
        raise UserError(f"{options}: {workdir} translates from {known}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


class _Once(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        if hasattr(namespace, self.dest):
            parser.error(f"{self.option_strings[0]} is given twice")
        setattr(namespace, self.dest, True if self.nargs == 0 else "" if values is None else values)


def _add_options(parser: _Parser, group: Any, section: type[Section], prefix: str, indices: Sequence[int]) -> None:
    for name, field in section.model_fields.items():
        inner, dest = section_of(field), prefix + (field.alias or name)
        if inner is MixtureConfig:
            for index in indices:
                _add_options(parser, parser, inner, f"{dest}.{index}.", ())
        elif inner:
            _add_options(parser, parser.add_argument_group(f"[{dest}]"), inner, f"{dest}.", indices)
        elif NO_NAME in field.metadata:
            group.add_argument(dest, nargs="+", metavar="PATH", help=_help(field))
        else:
            dashed, underscored = f"--{dest}".replace("_", "-"), f"--{dest}"
            names = dict.fromkeys([dashed, SHORT.get(dest, dashed), underscored])
            nargs = 0 if NO_VALUE in field.metadata else "+" if get_origin(field.annotation) is tuple else None
            nargs = "?" if ANY_VALUE in field.metadata else nargs
            texts = {"metavar": _metavar(field.annotation), "help": _help(field)}
            option = group.add_argument(*names, dest=dest, action=_Once, nargs=nargs, **texts)
            option.option_strings = [name for name in names if name == dashed or "_" not in name]  # for --help


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    inner = [each for each in get_args(kind) if each not in (type(None), Ellipsis)]
    if get_origin(kind) in (Union, UnionType) and len(inner) > 1:
        return "|".join(_metavar(each).strip("{}") for each in inner)
    return _metavar(inner[0]) if inner else METAVARS.get(kind, "TEXT")


METAVARS = {int: "INTEGER", float: "NUMBER", bool: "True|False", Path: "PATH"}


def _help(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    has_default = not field.is_required() and default not in (None, ()) and NO_VALUE not in field.metadata
    return (field.description or "").replace("%", "%%") + (f" (default: {default})" if has_default else "")
