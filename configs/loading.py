"""From TOML files and the command line to a validated config, and from any mistake in them to one sentence."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import pydantic
import tomli_w
import tyro

from configs.errors import UserError
from configs.schema import (
    Config,
    DataConfig,
    MixtureConfig,
    Section,
    SectionWithAlternatives,
    TokenizerConfig,
    TrainingConfig,
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

CONFIG_NAME = "config.toml"
# On resume these may differ from what the workdir was made with, and so may [devices] and every path, whose content
# counts.
CHANGEABLE = ("model.attention", "training.num_steps", "training.num_epochs", "training.patience", "training.log_every",
              "training.eval_every", "training.checkpoint_every", "training.keep_checkpoints",
              "training.tensorboard")  # fmt: skip
SECTIONS_WITH_PATHS: dict[str, type[Section]] = {
    "data": DataConfig,
    "data.mixture.#": MixtureConfig,
    "tokenizer": TokenizerConfig,
    "training": TrainingConfig,
}
PATHS = tuple(
    f"{prefix}.{name}"
    for prefix, section in SECTIONS_WITH_PATHS.items()
    for name, field in section.model_fields.items()
    if field.annotation == Path | None
)


def read_config(path: Path) -> Config:
    """Reads a TOML file; what it does not name has its default.

    Raises:
      UserError: the file is missing, not UTF-8, not TOML, or holds an unknown key or a bad value.
    """
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot read the config ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not valid UTF-8; save the file as UTF-8") from error
    except ValueError as error:  # TOMLDecodeError is one, and a number of thousands of digits gives another
        raise UserError(f"{path}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply for a config") from error
    try:  # JSON mode is strict about types ("3" is no number) and yet takes a string for a path
        return Config.model_validate_json(json.dumps(table, default=str), strict=True)
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply for a config") from error
    except pydantic.ValidationError as error:
        raise UserError(f"{path}: {_sentence(error)}") from error


def read_workdir_config(workdir: Path) -> Config:
    """The resolved config of a run.

    Raises:
      UserError: the folder is not there, or holds no config.
    """
    if not (workdir / CONFIG_NAME).is_file():
        state = f"it has no {CONFIG_NAME}" if workdir.is_dir() else "there is no such folder"
        raise UserError(f"{workdir}: not a workdir ({state}); train one with train.py --config C --workdir {workdir}")
    return read_config(workdir / CONFIG_NAME)


def as_json(config: Config) -> dict[str, Any]:
    """The config as an object of JSON's types."""
    return config.model_dump(mode="json")


def to_toml(config: Config) -> str:
    """The config, every option written out; options without a value are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def validated(section: type[Command], values: Mapping[str, Any]) -> Command:
    """A section with these values.

    Raises:
      UserError: there is no such option, or a bad value, in one sentence.
    """
    try:
        return section(**values)
    except pydantic.ValidationError as error:
        raise UserError(_sentence(error, root=section)) from error


def with_absolute_paths(config: Config) -> Config:
    """The config with every path made absolute, so that it means the same from any folder."""

    def absolute(section: Section) -> Section:
        paths = {name: value.expanduser().absolute() for name, value in section if isinstance(value, Path)}
        return section.model_copy(update=paths)

    mixture = tuple(absolute(entry) for entry in config.data.mixture)
    data = absolute(config.data).model_copy(update={"mixture": mixture})
    others = {"tokenizer": absolute(config.tokenizer), "training": absolute(config.training)}
    return config.model_copy(update={"data": data} | others)


def refused_differences(saved: Mapping[str, Any], wanted: Config, where: str, section: str = "") -> list[str]:
    """What resuming a run may not change, one line a field: "model.num_heads: 4 in the workdir, now 8".

    Args:
      saved: the config that the run was made with, as_json; where: the place in which it was found.
      section: the one to look at, all without it.
    """
    old, new = _flat(saved), _flat(as_json(wanted))
    # A share was turned into steps when the run was made, and those stay.
    stored = () if wanted.optimizer.warmup_share is None else ("optimizer.warmup_steps", "optimizer.warmup_share")
    free = (*CHANGEABLE, *stored)
    return [
        f"{name}: {old[name]} {where}, now {new[name]}"
        for name in old
        if name in new and old[name] != new[name] and name.startswith(section)
        if name not in free and not name.startswith("devices.") and _unnumbered(name) not in PATHS
    ]


def config_digest(config: Config) -> str:
    """SHA-256, in hex, of every option that has a value but those that are paths, which may differ between hosts."""
    flat = _flat(config.model_dump())
    same = {name: value for name, value in flat.items() if value is not None and not isinstance(value, Path)}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


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
        raise UserError(_sentence(error)) from error
    if rest:
        _refuse_unknown(rest[0], command)
    assert parsed is not None  # tyro types it like the default
    return parsed


def parse_over(
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
    if "mixture" in name and _unnumbered(name) in _field_names(command):
        raise UserError(
            f"{option}: the config file has no such [[data.mixture]]; add it there (options only change entries)"
        )
    raise UserError(f"unknown option {option}{_nearest(name, command, '--')}")


def _nearest(name: str, section: type[Section], prefix: str = "") -> str:
    number = next(iter(re.findall(r"\.(\d+)\.", name)), "0")
    known = [field.replace("#", number) for field in _field_names(section)]
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not match:  # a field given without its section, or in another one
        match = [full for full in known if full.rsplit(".")[-1] == name.rsplit(".")[-1]][:1]
    if not match:
        return ""
    return f"; did you mean {prefix}{match[0].replace('_', '-') if prefix else match[0]}?"


def _field_names(section: type[Section]) -> Iterator[str]:
    """All fields, with "#" for the number of an entry: data, data.name, ..., data.mixture, data.mixture.#.name, ..."""
    for name, field in section.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from (f"{name}.{inner}" for inner in _field_names(field.annotation))
        elif field.annotation == tuple[MixtureConfig, ...]:
            yield from (f"{name}.#.{inner}" for inner in _field_names(MixtureConfig))


def _unnumbered(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)


def _tyro_sentence(end: SystemExit, printed: str) -> str:
    cause: BaseException | None = end
    while cause is not None:
        if isinstance(cause, pydantic.ValidationError):
            entry = re.search(r"Error parsing (data\.mixture\.\d+):", printed)
            return _sentence(cause, entry[1] if entry else None)
        cause = cause.__context__
    lines = [line.strip("│╭╰─╮╯ ") for line in printed.splitlines() if line.startswith("│")]
    text = " ".join(line for line in lines if line)
    text = re.sub(r"no type matching .* - [^:]*: ", "", text)  # of an option that may be None: what its own type says
    return re.split(r" Argument helptext| For full helptext| ───", text)[0] or printed.strip() or "bad arguments"


def _sentence(error: pydantic.ValidationError, section: str | None = None, *, root: type[Section] = Config) -> str:
    """The first of a validation's errors: field, what is wrong, the value given. root has the fields there are."""
    first = error.errors()[0]
    section = section or _section_of(error.title)
    name = ".".join(filter(None, [section, *(str(part) for part in first["loc"])]))
    if first["type"] == "extra_forbidden":
        return f"unknown option {name}{_nearest(name, root)}"
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


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, list | tuple):  # of sections
            flat[prefix + name] = f"{len(value)} entries"
            value = {str(number): entry for number, entry in enumerate(value)}
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
