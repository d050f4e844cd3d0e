"""The command train: config -> training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lingua_flax.host.errors import UserError
from lingua_flax.host.files import check_writable
from lingua_flax.host.interruption import interruption
from lingua_flax.options.command_line import Command, Flag, Given, config_of, required_workdir
from lingua_flax.options.config_files import (
    CONFIG_NAME,
    HELD_OUT_NAME,
    as_json,
    read_config,
    read_workdir_config,
    refused_changes,
    with_held_out,
)
from lingua_flax.options.inheritance import check_same_network, inheriting
from lingua_flax.options.schema import Config, PositiveFloat, ProcessOptions, Run
from lingua_flax.runs.workdir import Workdir


class TrainCommand(Command, Config, ProcessOptions):
    """Trains a translator; the same command on a workdir with checkpoints resumes from the newest one."""

    workdir: Run | None = None
    """Folder of the run, required; created if it does not exist. If it has checkpoints, the run is resumed."""
    config: Path | None = None
    """TOML file with the options that differ from the defaults; not needed if the workdir already has a config."""
    dry_run: Flag = False
    """Train nothing: report parameters, operations, memory on each device of the mesh, what training would say about
    the data, and the length of the run; needs neither the devices nor --workdir."""
    tokens_per_second: PositiveFloat | None = None
    """With --dry-run: real target tokens per second, as reported by a run, to estimate the training time."""
    json_file: Annotated[Path | None, Field(alias="json")] = None
    """With --dry-run: file for the compiler's account of the training step, as one JSON object."""

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        workdir = required_workdir(given) if given.get("workdir") or "dry_run" not in given else None
        saved = saved_config(workdir) if workdir else None
        if given.get("config"):
            return dict(with_origin(read_config(Path(given["config"])), saved, given))
        if not saved:
            missing = f"{workdir} has no {CONFIG_NAME} yet" if workdir else "--dry-run needs a config"
            raise UserError(f"{missing}: give one with --config, for example --config tiny")
        return dict(saved)

    def check(self, given: Given) -> None:
        own = {"--tokens-per-second": self.tokens_per_second, "--json": self.json_file}
        for option, value in (own | {"devices.topology": self.devices.topology}).items():
            if value and not self.dry_run:
                raise UserError(f"{option} has no effect without --dry-run")


def resolve_config(argv: Sequence[str]) -> tuple[Config, TrainCommand]:
    """Returns the config of a run, and the command, whose workdir may be None only if nothing is trained.

    The command line overrides the config file, or the workdir's config if no file is given, which overrides the
    defaults. Raises UserError if an option is invalid or the config differs from that of the workdir, and SystemExit
    after --help.
    """
    command = TrainCommand.read(argv)
    saved = saved_config(command.workdir) if command.workdir else None
    return config_in_workdir(config_of(command), saved, command.workdir), command


def saved_config(workdir: Path) -> Config | None:
    """Returns the config of a workdir, if it has one already."""
    return read_workdir_config(workdir) if (workdir / CONFIG_NAME).exists() else None


def with_origin(config: Config, saved: Config | None, given: Given) -> Config:
    """Returns a config with what it takes from the run in training.init_from, if there is one.

    `saved` is the config of the workdir, which has it already, and `given` the options of the command line. Raises
    UserError if that run has another network than the config says; that there is none is said when it is needed.
    """
    named = given.get("training.init_from") or config.training.init_from
    origin = Path(named).expanduser() if named and named != "None" else None
    if not origin or not (saved or (origin / CONFIG_NAME).exists()):
        return config
    other = saved or read_workdir_config(origin)
    if not saved:
        check_same_network(config, other, given, f"in {origin}")
    return inheriting(config, other, given)


def config_in_workdir(config: Config, saved: Config | None, workdir: Path | None) -> Config:
    """Returns the config with what the run holds out; raises UserError if `saved`, that of the workdir, forbids it."""
    if not config.data.held_out or (saved and not config.data.held_out.exists()):  # it has a copy, if it needs one
        origin = config.training.init_from
        config = with_held_out(config, saved.data.held_out if saved else origin and origin / HELD_OUT_NAME)
    if workdir and saved and (differences := refused_changes(as_json(saved), config, "in the workdir")):
        raise UserError(
            why_not_trainable(workdir)
            or f"{workdir} was created with a different config: {'; '.join(differences)}. "
            "Choose another --workdir, or restore these options"
        )
    return config


def train(argv: Sequence[str]) -> None:
    """Runs the command."""
    config, command = resolve_config(argv)
    workdir = command.workdir
    # Here and below, modules are imported late, so that invalid options are reported at once.
    if command.dry_run:
        from lingua_flax.devices.compilation import set_up_compilation
        from lingua_flax.training.reports.dry_run import show_dry_run

        set_up_compilation()
        if command.json_file:
            check_writable(command.json_file)
        show_dry_run(config, workdir, command.tokens_per_second, command.json_file)
        return
    assert workdir  # resolve_config requires it for training
    if finished := why_not_trainable(workdir):
        print(finished)
        return
    from lingua_flax.devices.processes import is_first_process
    from lingua_flax.training import trainer

    run = trainer.train(config, Workdir(workdir), interruption, processes=command)
    if is_first_process():
        run.show()


def why_not_trainable(workdir: Path) -> str | None:
    """Returns the sentence that says so if a workdir holds a network without what its training needs to go on.

    Raises UserError if the folder cannot be created or written.
    """
    from lingua_flax.runs.checkpoint import holds_only_a_network

    files = Workdir(workdir)
    if holds_only_a_network(files.checkpoints):
        begin = f"Begin with it in another --workdir: --init-from {workdir}"
        return f"{workdir}: finished: it holds the network alone, with nothing to resume. {begin}"
    files.check_creatable()
    return None
