"""The command line: parses options over defaults, and reports any mistake as one sentence."""

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

from lingua_flax.host.errors import UserError
from lingua_flax.host.files import check_writable
from lingua_flax.options.config_files import with_absolute_paths
from lingua_flax.options.messages import field_names, suggestion, validation_message, without_index
from lingua_flax.options.schema import Config, DataConfig, Section, SectionWithAlternatives

Command = TypeVar("Command", bound=Section)

# A boolean option without a value (--x); other booleans take True or False.
Flag = Annotated[
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
    """Separates path options, which determine where defaults are read, from the rest of a command line.

    The names have no leading dashes. The path of an option that is missing or empty is None. Raises UserError if an
    option has no value.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", type=lambda value: Path(value) if value else None)
    known, rest = parser.parse_known_args(list(argv))
    return [getattr(known, name) for name in names], rest


def show_help(argv: Sequence[str], command: type[Section], description: str) -> None:
    """Prints all options and raises SystemExit, with status 0, if the command line contains --help or -h."""
    if "--help" in argv or "-h" in argv:
        parse(command, ["--help"], default=None, description=description)


def take_workdir(argv: Sequence[str], command: type[Section], *, description: str) -> tuple[Path, list[str]]:
    """Separates --workdir from the rest of a command line, or shows the help if the command line asks for it.

    Raises UserError if --workdir is missing, and SystemExit, with status 0, after --help.
    """
    show_help(argv, command, description)
    (workdir,), rest = take_options(argv, "workdir")
    return required_workdir(workdir), rest


def take_workdir_and_output(
    argv: Sequence[str], command: type[Section], *, description: str, output_hint: str
) -> tuple[Path, Path, list[str]]:
    """Separates --workdir and --output from the rest of a command line, like `take_workdir`.

    Also raises UserError if the output exists already, cannot be written or is missing; in the last case, the message
    ends with `output_hint`, which says what --output is, with an example.
    """
    show_help(argv, command, description)
    (workdir, output), rest = take_options(argv, "workdir", "output")
    workdir = required_workdir(workdir)
    if output is None:
        raise UserError(f"--output is required: {output_hint}")
    if output.exists() or output.is_symlink():
        raise output_exists(output)
    check_writable(output)
    return workdir, output, rest


def output_exists(output: Path) -> UserError:
    """Returns the error for an output that would replace something."""
    return UserError(f"--output {output} exists already; delete it or choose another name")


def required_workdir(workdir: Path | None) -> Path:
    """Returns the workdir; raises UserError if it is None."""
    if not workdir:
        raise UserError("--workdir is required: the folder of the run, for example --workdir checkpoints/tiny")
    return workdir


def check_languages(data: DataConfig, trained_on: DataConfig, workdir: Path) -> None:
    """Raises UserError unless the network in the workdir translates between the languages of the corpus `data`."""
    if data.tag_target != trained_on.tag_target:
        raise UserError(f"--data.tag-target must remain {trained_on.tag_target}, as in {workdir}")
    wanted = (data.source_language, data.target_language)
    if not trained_on.tag_target and wanted not in trained_on.directions:
        known = " or ".join(f"{source} to {target}" for source, target in trained_on.directions)
        options = f"--data.source-language {wanted[0]} --data.target-language {wanted[1]}"
        raise UserError(f"{options}: {workdir} translates from {known}")


def is_given(argv: Sequence[str], name: str) -> bool:
    """Returns whether a command line contains the option of a field such as training.num_steps."""
    options = {f"--{name}", f"--{name.replace('_', '-')}"}
    return any(argument.split("=")[0] in options for argument in argv)


def parse(command: type[Command], argv: Sequence[str], *, default: Command | None, description: str) -> Command:
    """Parses a command line; options that it omits have the values of `default`, or else the defaults of the section.

    The description says what the command does, for --help. Raises UserError, whose message is one sentence, if an
    option is unknown or missing or a value is invalid, and SystemExit, with status 0, after --help.
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
                config=(tyro.conf.FlagConversionOff,),
            )
    except SystemExit as tyro_exit:
        if tyro_exit.code == 0:
            raise
        raise UserError(_message_of_tyro(tyro_exit, errors.getvalue())) from tyro_exit
    except pydantic.ValidationError as error:
        raise UserError(validation_message(error)) from error
    if rest:
        _refuse_unknown(rest[0], command)
    assert parsed is not None  # tyro types it like the default
    return parsed


def parse_with_config(
    command: type[Command], argv: Sequence[str], base: Config, *, description: str, **own: Any
) -> tuple[Config, Command]:
    """Parses the command line of a command that has every option of a config; returns the config and all options.

    Options that the command line omits have their values in `base`, and the command's own options those in `own`. The
    paths of the config are made absolute. Raises the errors of `parse`.
    """
    default = command(**{name: getattr(base, name) for name in Config.model_fields}, **own)
    parsed = parse(command, [*argv, *_without_replaced(argv)], default=default, description=description)
    return with_absolute_paths(Config(**{name: getattr(parsed, name) for name in Config.model_fields})), parsed


def _without_replaced(argv: Sequence[str]) -> Iterator[str]:
    """Yields the options that clear the config's alternatives to options on the command line.

    An example is --training.num_epochs=None for --training.num-steps 300.
    """
    for section, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, SectionWithAlternatives):
            names = [f"{section}.{name}" for name in field.annotation.alternatives]
            given = [is_given(argv, name) for name in names]
            if any(given) and not all(given):
                yield f"--{names[given.index(False)]}=None"


class _Parser(argparse.ArgumentParser):
    """A parser that raises UserError instead of exiting."""

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


# Messages of tyro, as regular expressions, and what is said instead.
_REPHRASED = {
    r"Error parsing (--\S+): invalid literal for int\(\) with base 10: '(.*)'": r'\1 must be a whole number, got "\2"',
    r"Error parsing (--\S+): could not convert string to float: '(.*)'": r'\1 must be a number, got "\2"',
    r"Missing value for argument '(--\S+)'\. Expected 1 values\.": r"\1 needs a value",
    r"invalid choice '(.*)' for argument '(--\S+)'\. Expected one of \((.*)\)\.": r"\2 must be one of \3, got '\1'",
}


def _message_of_tyro(tyro_exit: SystemExit, printed: str) -> str:
    """Returns one sentence for the error that made tyro exit; `printed` is its own account."""
    cause: BaseException | None = tyro_exit
    while cause is not None:
        if isinstance(cause, pydantic.ValidationError):
            entry = re.search(r"Error parsing (data\.mixture\.\d+):", printed)
            return validation_message(cause, entry[1] if entry else None)
        cause = cause.__context__
    lines = [line.strip("│╭╰─╮╯ ") for line in printed.splitlines() if line.startswith("│")]
    text = " ".join(line for line in lines if line)
    text = re.sub(r"no type matching .* - [^:]*: ", "", text)  # if None is allowed: keep the message of the other type
    text = re.split(r" Argument helptext| For full helptext| ───", text)[0]
    for pattern, replacement in _REPHRASED.items():
        text = re.sub(pattern, replacement, text)
    return text or printed.strip() or "bad arguments"
