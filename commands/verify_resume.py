"""The command verify_resume.py: config -> a run that is killed and one that is not, compared."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from host.errors import RunError, UserError
from host.interruption import interruption
from host.terminal import print_table
from options.command_line import parse_with_config, show_help, take_options
from options.config_files import CONFIG_NAME, read_config, to_toml
from options.schema import Config, Count
from runs.workdir import Workdir

if TYPE_CHECKING:
    from verification.comparison import Compared
    from verification.killed_run import Kill, Training

log = logging.getLogger(__name__)


class VerifyCommand(Config):
    """Options of verify_resume.py: those of the config, and its own."""

    config: Path | None = None
    """TOML file of the run, required."""
    kills: Count = 5
    """How often to kill it with SIGKILL: in a validation, a save, the compilation and the first step, as far as there
    are so many, then at random steps and in random starts."""
    kill_seed: int | None = None
    """Seed of the moments; by default another one each time, which is shown."""
    workdir: Path | None = None
    """New folder for both runs; by default a temporary one, which is kept where they differ."""


HELP = (
    "Trains a config twice, once without interruption and once killed with SIGKILL and started again, and compares "
    "every batch, every number in metrics.jsonl and every array of the last checkpoint; status 1 where they differ."
)


def read_options(argv: Sequence[str]) -> tuple[Config, VerifyCommand]:
    """The config to verify, and the command.

    Raises:
      UserError: a bad option, or no config.
    """
    show_help(argv, VerifyCommand, HELP)
    (config_file,), rest = take_options(argv, "config")
    if not config_file:
        raise UserError("--config is required, for example --config configs/tiny.toml")
    return parse_with_config(VerifyCommand, rest, read_config(config_file), description=HELP, config=config_file)


def verify_resume(argv: Sequence[str]) -> None:
    """Runs the command."""
    config, command = read_options(argv)
    if command.workdir:
        _make(command.workdir)
        _verify(config, command, command.workdir)
        return
    folder = Path(tempfile.mkdtemp(prefix="verify-resume-"))
    _verify(config, command, folder)
    shutil.rmtree(folder)


def _make(folder: Path) -> None:
    if folder.exists():
        raise UserError(f"{folder}: is there already; both runs begin anew: choose another --workdir")
    Workdir(folder).check_creatable()
    folder.mkdir(parents=True)


def _verify(config: Config, command: VerifyCommand, folder: Path) -> None:
    from verification.comparison import compare  # after the arguments: a wrong one is answered at once
    from verification.killed_run import Pace, Training, draw_moments, run_killed

    seed = random.randrange(1000) if command.kill_seed is None else command.kill_seed
    file, one, other = folder / CONFIG_NAME, folder / "uninterrupted", folder / "killed"
    file.write_text(to_toml(config), encoding="utf-8")
    log.info("the run without interruption: %s", one)
    with interruption.deferred():  # a signal has to end train.py too
        whole = Training(file, one, folder / "compiled-uninterrupted", interruption.check)
        try:
            whole.finish()
        finally:
            whole.kill()
        steps = max(line["step"] for line in Workdir(one).read_metrics())
        log.info("the run with %d kills, at moments of --kill-seed %d: %s", command.kills, seed, other)
        moments = draw_moments(config, steps, command.kills, seed)
        kills, last = run_killed(
            lambda: Training(file, other, folder / "compiled-killed", interruption.check),
            moments, config, Pace.of(whole), _tell,
        )  # fmt: skip
    compared = compare(one, other)
    _show_kills(kills, last)
    _show_compared(compared)
    if not all(each.same for each in compared):
        raise RunError(f"the killed run is not the run that was not killed; both are kept in {folder}")
    if len(kills) < command.kills:
        raise RunError(
            f"it ended after {len(kills)} of {command.kills} kills; give it more steps or another --kill-seed"
        )
    print(f"{steps:,} steps, SIGKILL {len(kills)} times: the same run, bit for bit (--kill-seed {seed})")


def _tell(number: int, kill: Kill) -> None:
    log.info("kill %d: in %s, after step %d", number, kill.during, kill.after)


def _show_kills(kills: Sequence[Kill], last: Training) -> None:
    table = Table("kill", "in", "after step", "went on from", "steps redone", "seconds to the first step")
    then = [(kill.went_on_from, kill.under_way) for kill in kills[1:]] + [(last.went_on_from, last.under_way)]
    for number, (kill, (went_on_from, seconds)) in enumerate(zip(kills, then, strict=False), 1):
        again = (
            ("killed before", "") if went_on_from is None else (f"{went_on_from:,}", f"{kill.after - went_on_from:,}")
        )
        table.add_row(str(number), kill.during, f"{kill.after:,}", *again, f"{seconds:.1f}" if seconds else "")
    print_table(table)


def _show_compared(compared: Sequence[Compared]) -> None:
    table = Table("compared", "of each", "SHA-256 uninterrupted", "SHA-256 killed", "verdict")
    for each in compared:
        verdict = "the same" if each.same else f"NOT the same: {each.difference}"
        table.add_row(each.what, each.extent, *(digest[:16] for digest in each.digests), verdict)
    print_table(table)
