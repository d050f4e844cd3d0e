"""Trains a translator: config -> training loop. See --help for every option."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from configs.command import main
from configs.errors import UserError
from configs.loading import (
    CONFIG_NAME,
    BareFlag,
    is_given,
    optional_workdir_of,
    options_of,
    parse,
    read_config,
    refused_differences,
    with_absolute_paths,
    workdir_of,
)
from configs.schema import Config, ProcessOptions
from runtime.interruption import Interruption
from runtime.memory import keep_freed_memory
from runtime.workdir import Workdir


class TrainCommand(Config, ProcessOptions):
    """Options of train.py: those of the config, and where it is and goes."""

    workdir: Path | None = None
    """Folder of the run, required: it is made, or gone on with where it holds checkpoints."""
    config: Path | None = None
    """TOML file with what differs from the defaults; not needed where the workdir has its config."""
    inspect_data: BareFlag = False
    """Train nothing: report what is in the corpus, in tables and a picture (inspection.png); needs no --workdir."""


def resolve_config(argv: Sequence[str]) -> tuple[Config, TrainCommand]:
    """The config of a run, and the command. Later ones win: defaults, workdir or config file, command line.

    The command's workdir is None only where --inspect-data is given and it is not.

    Raises:
      UserError: a bad option, or a config that differs from what the workdir was made with.
    """
    find_workdir = optional_workdir_of if is_given(argv, "inspect_data") else workdir_of
    workdir = find_workdir(argv, TrainCommand, description=TRAIN_HELP)
    (config_file,) = options_of(argv, "config")
    saved = read_config(workdir / CONFIG_NAME) if workdir and (workdir / CONFIG_NAME).exists() else None
    if not config_file and not saved:
        missing = f"{workdir} has no {CONFIG_NAME} yet" if workdir else "--inspect-data needs a config"
        raise UserError(f"{missing}: give one with --config, for example configs/tiny.toml")
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
    return config, command


TRAIN_HELP = "Trains a translator; the same command on a workdir with checkpoints goes on from the newest one."


def train(argv: Sequence[str]) -> None:
    """Runs the command."""
    interruption = Interruption().install()
    config, command = resolve_config(argv)
    workdir = command.workdir
    if is_given(argv, "inspect_data"):
        from training.data_report import report_data

        report_data(config, workdir)
        return
    assert workdir  # resolve_config would not have it otherwise
    keep_freed_memory()
    from runtime.compilation import set_up_compilation  # after the arguments: a wrong one is answered at once
    from runtime.devices import start_devices
    from runtime.processes import working_together
    from training.loop import Run
    from training.preparation import prepare

    files = Workdir(workdir)
    files.check_creatable()
    files.read_metrics()  # a damaged file is found before anything is written
    start_devices(config.devices.platform, command)
    compilations = set_up_compilation()
    with working_together():
        Run(prepare(config, workdir), workdir, interruption, compilations).train()


if __name__ == "__main__":
    sys.exit(main(train))
