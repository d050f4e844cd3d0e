"""The command verify-resume: config -> an uninterrupted run and a killed run, compared."""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.interruption import interruption
from lingua_flax.host.terminal import print_table
from lingua_flax.host.wording import counted
from lingua_flax.options.command_line import Command, Given, config_of
from lingua_flax.options.config_files import CONFIG_NAME, read_config, to_toml
from lingua_flax.options.schema import Config, Count
from lingua_flax.runs.workdir import Workdir

if TYPE_CHECKING:
    from lingua_flax.runs.verification.comparison import PartComparison
    from lingua_flax.runs.verification.killed_run import TrainProcess

log = logging.getLogger(__name__)


class DifferentRunError(RunError):
    """The killed run differs from the uninterrupted one."""


class VerifyCommand(Command, Config):
    """Trains a config twice, once without interruption and once killed with SIGKILL and started again, and compares
    every batch, every number in metrics.jsonl and every array of the last checkpoint; status 1 if they differ."""

    config: Path | None = None
    """TOML file with the config of the run, required."""
    kills: Count = 5
    """Number of times to kill the run with SIGKILL: once each during a validation, a save, the compilation and the
    first step, as far as this number allows, then at random steps and during random starts."""
    kill_seed: int | None = None
    """Random seed of the moments of the kills; by default a different one each time, which is reported."""
    workdir: Path | None = None
    """New folder for both runs; by default a temporary one, which is deleted unless they differ."""

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        if not given.get("config"):
            raise UserError("--config is required, for example --config tiny")
        return dict(read_config(Path(given["config"])))


def verify_resume(argv: Sequence[str]) -> None:
    """Runs the command."""
    command = VerifyCommand.read(argv)
    folder = command.workdir or Path(tempfile.mkdtemp(prefix="verify-resume-"))
    is_temporary = not command.workdir
    if command.workdir:
        _create(folder)
    try:
        _verify(config_of(command), command, folder)
    except DifferentRunError:
        is_temporary = False
        raise
    finally:
        if is_temporary:
            shutil.rmtree(folder)


def _create(folder: Path) -> None:
    if folder.exists():
        raise UserError(f"{folder}: already exists, but both runs must start from scratch; choose another --workdir")
    Workdir(folder).check_creatable()
    folder.mkdir(parents=True)


def _verify(config: Config, command: VerifyCommand, folder: Path) -> None:
    # Imported here so that invalid options are reported at once.
    from lingua_flax.devices.platform import initialize_devices
    from lingua_flax.runs.verification.comparison import compare
    from lingua_flax.runs.verification.killed_run import TrainProcess, draw_moments, run_killed

    seed = random.randrange(1000) if command.kill_seed is None else command.kill_seed
    config_file, uninterrupted, killed = folder / CONFIG_NAME, folder / "uninterrupted", folder / "killed"
    config_file.write_text(to_toml(config), encoding="utf-8")
    log.info("the uninterrupted run: %s", uninterrupted)
    with interruption.deferred():  # a signal must end the training processes too
        training = TrainProcess(config_file, uninterrupted, interruption.check)
        training.finish()
        steps = training.last_step
        log.info("the run with %s (--kill-seed %d): %s", counted(command.kills, "kill"), seed, killed)
        moments = draw_moments(config.training, steps, command.kills, seed)
        start = partial(TrainProcess, config_file, killed, interruption.check)
        processes = run_killed(start, moments, config.training.log_every, training)
    initialize_devices("cpu")  # comparing needs no accelerator
    comparisons = compare(uninterrupted, killed)
    _show_kills(processes)
    _show_comparisons(comparisons)
    if not all(comparison.same for comparison in comparisons):
        raise DifferentRunError(f"the killed run differs from the uninterrupted run; both are kept in {folder}")
    kills = len(processes) - 1
    if kills < command.kills:
        raise RunError(
            f"the run ended after {kills} of {command.kills} kills; give it more steps or another --kill-seed"
        )
    print(f"{counted(steps, 'step')}, SIGKILL {counted(kills, 'time')}: the same run, bit for bit (--kill-seed {seed})")


def _show_kills(processes: Sequence[TrainProcess]) -> None:
    table = Table("kill", "during", "after step", "resumed from", "steps redone", "seconds to the first step")
    for number, (killed, next_one) in enumerate(itertools.pairwise(processes), 1):
        restart, start, seconds = ("killed before", ""), next_one.resumed_from, next_one.first_step
        if start is not None:
            restart = (f"{start:,}", f"{killed.last_step - start:,}")
        seconds_text = f"{seconds:.1f}" if seconds else ""
        table.add_row(str(number), killed.killed_during, f"{killed.last_step:,}", *restart, seconds_text)
    print_table(table)


def _show_comparisons(comparisons: Sequence[PartComparison]) -> None:
    table = Table("compared", "number", "SHA-256 uninterrupted", "SHA-256 killed", "verdict")
    for comparison in comparisons:
        verdict = "the same" if comparison.same else f"NOT the same: {comparison.difference}"
        table.add_row(comparison.what, comparison.extent, *(digest[:16] for digest in comparison.digests), verdict)
    print_table(table)
