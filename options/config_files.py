"""From TOML files and the command line to a validated config, and from any mistake in them to one sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import tomli_w

from host.digests import json_digest
from host.errors import UserError
from options.messages import message_of, without_index
from options.schema import (
    Config,
    DataConfig,
    MixtureConfig,
    Section,
    TokenizerConfig,
    TrainingConfig,
)

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
        raise UserError(f"{path}: {message_of(error)}") from error


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


def with_absolute_paths(config: Config) -> Config:
    """The config with every path made absolute, so that it means the same from any folder."""

    def absolute(section: Section) -> Section:
        paths = {name: value.expanduser().absolute() for name, value in section if isinstance(value, Path)}
        return section.model_copy(update=paths)

    mixture = tuple(absolute(entry) for entry in config.data.mixture)
    data = absolute(config.data).model_copy(update={"mixture": mixture})
    others = {"tokenizer": absolute(config.tokenizer), "training": absolute(config.training)}
    return config.model_copy(update={"data": data} | others)


def refused_changes(saved: Mapping[str, Any], wanted: Config, where: str, section: str = "") -> list[str]:
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
        if name not in free and not name.startswith("devices.") and without_index(name) not in PATHS
    ]


def config_digest(config: Config) -> str:
    """SHA-256, in hex, of every option that has a value but those that are paths, which may differ between hosts."""
    flat = _flat(config.model_dump())
    same = {name: value for name, value in flat.items() if value is not None and not isinstance(value, Path)}
    return json_digest(same)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, list | tuple):  # of sections
            flat[prefix + name] = f"{len(value)} entries"
            value = {str(number): entry for number, entry in enumerate(value)}
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
