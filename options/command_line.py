"""From TOML files and the command line to a validated config, and from any mistake in them to one sentence."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import pydantic
import tyro

from host.errors import UserError
from options.config_files import with_absolute_paths
from options.messages import field_names, message_of, suggestion, without_index
from options.schema import (
    Config,
    Section,
    SectionWithAlternatives,
)

Command = TypeVar("Command", bound=Section)


# A boolean option that takes no value (--x) on a command line whose other booleans do.
BareFlag = Annotated[
    bool,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=0,
        metavar="",
        instance_from_str=lambda _: True,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda _: [],
    ),
    tyro.conf.arg(help_behavior_hint=""),
]


def take_options(argv: Sequence[str], *names: str) -> tuple[list[Path | None], list[str]]:
    """The paths that a command line gives to the named options, which say where its defaults are, and what is left of
    it to be parsed over them.

    Raises:
      UserError: one of them stands without a value.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", type=lambda value: Path(value) if value else None)
    known, rest = parser.parse_known_args(list(argv))
    return [getattr(known, name) for name in names], rest


def show_help(argv: Sequence[str], command: type[Section], description: str, *, flags: bool = False) -> None:
    """Shows every option and ends with status 0 where a command line asks for --help."""
    if "--help" in argv or "-h" in argv:
        parse(command, ["--help"], default=None, description=description, flags=flags)


def take_workdir(
    argv: Sequence[str], command: type[Section], *, description: str, flags: bool = False
) -> tuple[Path, list[str]]:
    """The --workdir of a command line, and what is left of it; where that asks for --help, shows it instead.

    Raises:
      UserError: there is none.
      SystemExit: with status 0, after --help.
    """
    show_help(argv, command, description, flags=flags)
    (workdir,), rest = take_options(argv, "workdir")
    return required_workdir(workdir), rest


def required_workdir(workdir: Path | None) -> Path:
    """The workdir.

    Raises:
      UserError: none is given.
    """
    if not workdir:
        raise UserError("--workdir is required: the folder of the run, for example --workdir checkpoints/tiny")
    return workdir


def is_given(argv: Sequence[str], name: str) -> bool:
    """Whether a command line gives the option of a field such as training.num_steps."""
    options = {f"--{name}", f"--{name.replace('_', '-')}"}
    return any(argument.split("=")[0] in options for argument in argv)


def parse(
    command: type[Command], argv: Sequence[str], *, default: Command | None, description: str, flags: bool = False
) -> Command:
    """Parses a command line over a default; a boolean takes True or False, or with `flags` no value (--x, --no-x).

    Raises:
      UserError: an unknown option, a missing one, or a bad value, in one sentence.
      SystemExit: with status 0, after --help.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed, rest = tyro.cli(
                command,
                args=list(argv),
                default=default,
                description=description,
                return_unknown_args=True,
                config=() if flags else (tyro.conf.FlagConversionOff,),
            )
    except SystemExit as end:
        if end.code == 0:
            raise
        raise UserError(_tyro_sentence(end, errors.getvalue())) from end
    except pydantic.ValidationError as error:
        raise UserError(message_of(error)) from error
    if rest:
        _refuse_unknown(rest[0], command)
    assert parsed is not None  # tyro types it like the default
    return parsed


def parse_with_config(
    command: type[Command], argv: Sequence[str], base: Config, *, description: str, **own: Any
) -> tuple[Config, Command]:
    """Parses the command line of a command that has every option of a config, over one that was read.

    Args:
      own: defaults of the options that are the command's own.

    Raises:
      UserError, SystemExit: as `parse`.
    """
    default = command(**{name: getattr(base, name) for name in Config.model_fields}, **own)
    parsed = parse(command, [*argv, *_replaced(argv)], default=default, description=description)
    return with_absolute_paths(Config(**{name: getattr(parsed, name) for name in Config.model_fields})), parsed


def _replaced(argv: Sequence[str]) -> Iterator[str]:
    """The options that take away what the config has of the alternatives to those that a command line gives, such as
    --training.num_epochs=None for --training.num-steps 300."""
    for section, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, SectionWithAlternatives):
            names = [f"{section}.{name}" for name in field.annotation.alternatives]
            given = [is_given(argv, name) for name in names]
            if any(given) and not all(given):
                yield f"--{names[given.index(False)]}=None"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _refuse_unknown(argument: str, command: type[Section]) -> NoReturn:
    if not argument.startswith("--"):
        raise UserError(f'unexpected argument "{argument}"; options look like --training.num-steps 1000')
    option = argument.split("=")[0]
    name = option[2:].replace("-", "_")
    if "mixture" in name and without_index(name) in field_names(command):
        raise UserError(
            f"{option}: the config file has no such [[data.mixture]]; add it there (options only change entries)"
        )
    raise UserError(f"unknown option {option}{suggestion(name, command, '--')}")


def _tyro_sentence(end: SystemExit, printed: str) -> str:
    cause: BaseException | None = end
    while cause is not None:
        if isinstance(cause, pydantic.ValidationError):
            entry = re.search(r"Error parsing (data\.mixture\.\d+):", printed)
            return message_of(cause, entry[1] if entry else None)
        cause = cause.__context__
    lines = [line.strip("│╭╰─╮╯ ") for line in printed.splitlines() if line.startswith("│")]
    text = " ".join(line for line in lines if line)
    text = re.sub(r"no type matching .* - [^:]*: ", "", text)  # of an option that may be None: what its own type says
    return re.split(r" Argument helptext| For full helptext| ───", text)[0] or printed.strip() or "bad arguments"
