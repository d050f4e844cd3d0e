"""Trains a translator: config -> training loop. See --help for every option."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.command import main
from configs.errors import UserError
from configs.loading import (
    CONFIG_NAME,
    is_given,
    options_of,
    parse,
    read_config,
    refused_differences,
    with_absolute_paths,
    workdir_of,
)
from configs.schema import Config
from runtime.interruption import Interruption
from runtime.memory import keep_freed_memory
from runtime.workdir import Workdir


class TrainCommand(Config):
    """Options of train.py: those of the config, and where it is and goes."""

    workdir: Path
    """Folder of the run: it is made, or gone on with where it holds checkpoints."""
    config: Path | None = None
    """TOML file with what differs from the defaults; not needed where the workdir has its config."""


def resolve_config(argv: Sequence[str]) -> tuple[Config, Path]:
    """The config of a run and its workdir. Later ones win: defaults, workdir or config file, command line.

    Raises:
      UserError: a bad option, or a config that differs from what the workdir was made with.
    """
    workdir = workdir_of(argv, TrainCommand, description=TRAIN_HELP)
    (config_file,) = options_of(argv, "config")
    saved_file = workdir / CONFIG_NAME
    saved = read_config(saved_file) if saved_file.exists() else None
    if not config_file and not saved:
        raise UserError(f"{workdir} has no {CONFIG_NAME} yet: give one with --config, for example configs/tiny.toml")
    base = read_config(Path(config_file)) if config_file else saved
    assert base is not None
    if is_given(argv, "training.num_steps") and base.training.num_epochs:  # the length given last counts
        base = base.model_copy(update={"training": base.training.model_copy(update={"num_epochs": None})})
    fields = {name: getattr(base, name) for name in Config.model_fields}
    default = TrainCommand(**fields, workdir=workdir, config=Path(config_file) if config_file else None)
    command = parse(TrainCommand, argv, default=default, description=TRAIN_HELP)
    config = with_absolute_paths(Config(**{name: getattr(command, name) for name in Config.model_fields}))
    if saved and (differences := refused_differences(saved, config)):
        raise UserError(
            f"{workdir} was made with another config: {'; '.join(differences)}. "
            "Choose another --workdir, or leave these as they were"
        )
    return config, workdir


TRAIN_HELP = "Trains a translator; the same command on a workdir with checkpoints goes on from the newest one."


def train(argv: Sequence[str]) -> None:
    """Runs the command."""
    interruption = Interruption().install()
    config, workdir = resolve_config(argv)
    keep_freed_memory()
    from runtime.compilation import set_up_compilation  # after the arguments: a wrong one is answered at once
    from runtime.devices import select_platform
    from training.loop import Run
    from training.preparation import prepare

    files = Workdir(workdir)
    files.check_creatable()
    files.read_metrics()  # a damaged file is found before anything is written
    select_platform(config.devices.platform)
    compilations = set_up_compilation()
    Run(prepare(config, workdir), workdir, interruption, compilations).train()


if __name__ == "__main__":
    sys.exit(main(train))
