"""Config files: reading and writing TOML, and comparing the configs of a run."""

import importlib.resources
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
import tomli_w
from pydantic.fields import FieldInfo

from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import UserError
from lingua_flax.options.messages import all_fields, validation_message
from lingua_flax.options.schema import CHANGEABLE, Config, Section, SectionType, run_folder

CONFIG_NAME = "config.toml"
ORIGIN_NAME = "origin.json"  # where an imported network comes from, and its licence
HELD_OUT_NAME = "held_out.json"  # the hashes of the pairs that a run has held out


def read_config(path: Path) -> Config:
    """Reads the config of a run as `read_section` does, or one of this package by its name, such as "tiny"."""
    if not path.is_file() and path.name == str(path):  # a folder, such as the workdir, may have the same name
        path = packaged_configs().get(path.name, path)
    return read_section(path, Config)


def read_section(path: Path, section: type[SectionType]) -> SectionType:
    """Reads a TOML file; options that it omits have their defaults.

    Raises UserError if the file is missing, not UTF-8 or not TOML, or has an unknown key or an invalid value.
    """
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        # JSON mode checks types strictly ("3" is not a number), yet accepts a string as a path
        return section.model_validate_json(json.dumps(table, default=str), strict=True)
    except OSError as error:
        by_name = section is Config and not path.suffix
        known = f"; the configs known by name are {', '.join(packaged_configs())}" if by_name else ""
        raise UserError(f"{path}: cannot read the config ({error.strerror}){known}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not valid UTF-8; save the file as UTF-8") from error
    except pydantic.ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":  # the only fault that JSON of our own can have
            raise UserError(f"{path}: nested too deeply for a config") from error
        raise UserError(f"{path}: {validation_message(error, section)}") from error
    except ValueError as error:  # TOMLDecodeError, or the error for a number with thousands of digits
        raise UserError(f"{path}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply for a config") from error


def packaged_configs() -> dict[str, Path]:
    """Returns the config files that come with the package, by name."""
    folder = Path(str(importlib.resources.files("lingua_flax.configs")))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def read_workdir_config(workdir: Path) -> Config:
    """Reads the resolved config of a run; raises UserError if there is none, or as for `read_config`."""
    if not (workdir / CONFIG_NAME).is_file():
        state = f"it has no {CONFIG_NAME}" if workdir.is_dir() else "there is no such folder"
        train = f"train one with lingua-flax train --config C --workdir {workdir}"
        remedy = "let lingua-flax build go on" if run_folder(workdir.parent) == workdir else train
        raise UserError(f"{workdir}: not a workdir ({state}); {remedy}")
    config = read_config(workdir / CONFIG_NAME)
    return with_held_out(config, workdir.absolute() / HELD_OUT_NAME) if config.data.held_out else config


def read_origin(workdir: Path) -> dict[str, Any]:
    """Returns where an imported network, or one that began with it, comes from; {} for others."""
    path = workdir / ORIGIN_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}); copy the workdir again") from error


def with_held_out(config: Config, file: Path | None) -> Config:
    """Returns the config with this file as data.held_out, or none if it does not exist: nothing was held out then."""
    data = config.data.model_copy(update={"held_out": file if file and file.exists() else None})
    return config.model_copy(update={"data": data})


def as_json(config: Config) -> dict[str, Any]:
    """Returns the config as nested dictionaries and lists of JSON types."""
    return config.model_dump(mode="json")


def to_toml(config: Config) -> str:
    """Returns the config as TOML with all options, defaults included, except those without a value."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def with_absolute_paths(section: SectionType) -> SectionType:
    """Returns a section with absolute paths; raises UserError if one begins with ~ or ~user without such a home."""
    return section.model_copy(update={name: _absolute(value) for name, value in section})


def _absolute(value: Any) -> Any:
    if isinstance(value, Section):
        return with_absolute_paths(value)
    if isinstance(value, tuple):  # of sections
        return tuple(map(_absolute, value))
    try:
        return value.expanduser().absolute() if isinstance(value, Path) else value
    except RuntimeError as error:
        raise UserError(f"{value}: there is no such home directory") from error


def refused_changes(saved: Mapping[str, Any], wanted: Config, where: str, section: str = "") -> list[str]:
    """Returns the changes with which a run cannot be resumed, such as "model.num_heads: 4 in the workdir, now 8".

    `saved` is the config that the run was created with, from `as_json`, found in a place such as "in the workdir". With
    a section such as "model.", only its options are compared.
    """
    old, new = flat(saved), flat(as_json(wanted))
    changeable = [name for name, field in all_fields(Config) if _may_change(field)]
    if wanted.optimizer.warmup_share is not None:  # converted into steps when the run was created, which it keeps
        changeable += ["optimizer.warmup_steps", "optimizer.warmup_share"]
    return [
        f"{name}: {old[name]} {where}, now {new[name]}"
        for name in old
        if name in new and old[name] != new[name] and name.startswith(section)
        if not _is_in(re.sub(r"\.\d+\.", ".#.", name), changeable)
    ]


def _may_change(field: FieldInfo) -> bool:
    return CHANGEABLE in field.metadata or field.annotation == Path | None  # of a file, the content is compared


def _is_in(name: str, options: Sequence[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in options)


def differing_options(systems: Mapping[str, Sequence[Config]]) -> dict[str, dict[str, list[Any]]]:
    """Returns the options of runs that differ, and each system's values; not the seed, nor a run's copy of held_out."""
    options = {system: [flat(as_json(config)) for config in configs] for system, configs in systems.items()}
    names = dict.fromkeys(name for configs in options.values() for each in configs for name in each)
    del names["training.seed"], names["data.held_out"]
    values = {
        name: {system: list(dict.fromkeys(each.get(name) for each in configs)) for system, configs in options.items()}
        for name in names
    }
    return {name: row for name, row in values.items() if len({value for found in row.values() for value in found}) > 1}


def config_digest(config: Config) -> str:
    """Returns the SHA-256, in hexadecimal, of all options with a value except paths, which may differ between hosts."""
    options = flat(config.model_dump())
    compared = {name: value for name, value in options.items() if value is not None and not isinstance(value, Path)}
    return json_digest(compared)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns all values by their dotted names, and for each list of sections its length as text."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, list | tuple):  # of sections
            values[prefix + name] = f"{len(value)} entries"
            value = {str(number): entry for number, entry in enumerate(value)}
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return values
