"""The commands train and evaluate as functions of Python: lingua_flax.train and lingua_flax.evaluate."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lingua_flax.commands.evaluate import EvaluateCommand, loaded, score_translations
from lingua_flax.commands.train import TrainCommand, config_in_workdir, saved_config, why_not_trainable, with_origin
from lingua_flax.host.errors import Interrupted, UserError
from lingua_flax.host.interruption import BorrowedSignals
from lingua_flax.options.config_files import CONFIG_NAME, read_config, with_absolute_paths
from lingua_flax.options.messages import all_fields, suggestion, validated
from lingua_flax.options.schema import Config
from lingua_flax.runs.workdir import Workdir

if TYPE_CHECKING:
    from lingua_flax.training.progress import Progress

log = logging.getLogger(__name__)


def train(
    config: Config | Mapping[str, Any] | str | Path | None,
    workdir: str | Path,
    on_metrics: Callable[[dict[str, Any]], object] | None = None,
) -> Progress:
    """Trains a run to its end, or resumes it, as the command `lingua-flax train` does; prints nothing.

    Ctrl-C stops it after the current step, with its state saved, and so does an exception that `on_metrics` raises: the
    same call continues. A second Ctrl-C stops it at once. In a thread other than the main one, only `on_metrics` can
    stop it. Progress is logged, at level INFO of the logger "lingua_flax". On Linux, the process keeps freed memory
    afterwards, as that of the command does, which makes training on a CPU faster. Returns how far the run has come, and
    its best validation.

    Args:
      config: the path of a TOML file; the name of a config of this package, such as "tiny"; its tables as dictionaries,
        such as {"model": {"embed_dim": 64}}; a Config; or None for the config that the workdir already has.
      workdir: folder of the run, created if it does not exist. If it has checkpoints, the run is resumed.
      on_metrics: called with each line that is written to metrics.jsonl, in order, those of steps and of validations;
        the lines of training.log_every steps come together.

    Raises:
      UserError: the config, a file or the workdir is invalid, or JAX already uses other devices in this process.
      RunError: the run failed, for example because its loss was repeatedly not finite.
      KeyboardInterrupt: after Ctrl-C; SIGTERM ends the process, both unless the program has handlers of its own.
    """
    from lingua_flax.training import trainer

    workdir, interruption, failures = Path(workdir), BorrowedSignals(), list[BaseException]()
    resolved = _resolved(config, workdir)

    def tell(line: dict[str, Any]) -> None:
        if on_metrics and not failures:
            try:
                on_metrics(line)
            except BaseException as error:
                failures.append(error)
                interruption.signal_number = signal.SIGINT  # stops the run as Ctrl-C does, in all of its processes

    try:
        run = trainer.train(resolved, Workdir(workdir), interruption, tell)
    except Interrupted as interrupted:
        if failures:
            raise failures[0] from None
        log.warning("%s", interrupted)
        signal.raise_signal(signal.Signals(interrupted.signal_number))  # the handler of the program decides
        raise
    return run.progress


def _resolved(config: Config | Mapping[str, Any] | str | Path | None, workdir: Path) -> Config:
    if finished := why_not_trainable(workdir):
        raise UserError(finished)
    saved = saved_config(workdir)
    if config is None and (config := saved) is None:
        raise UserError(f'{workdir} has no {CONFIG_NAME} yet: give a config, for example "tiny"')
    given = read_config(Path(config)) if isinstance(config, str | Path) else validated(Config, dict(config))
    given = validated(Config, dict(with_origin(given, saved, {})))
    TrainCommand(**dict(given)).check({})
    return config_in_workdir(with_absolute_paths(given), saved, workdir)


def evaluate(workdir: str | Path, split: str = "test", **options: Any) -> dict[str, Any]:
    """Translates a split of the run's corpus, or a file, and scores it as the command `lingua-flax evaluate` does.

    Args:
      workdir: folder of the run.
      split: split of its corpus.
      **options: further options of the command, such as source="in.en", reference="ref.fr", checkpoint="last",
        beam_size=1, ter=True or devices={"platform": "cpu"}.

    Returns:
      the scores, which the command writes to its file --json: "bleu", "bleu_signature", "chrf" and so on.

    Raises:
      UserError: an option is unknown or invalid, the workdir or a file cannot be read, or the files are not aligned.
    """
    given: dict[str, Any] = {"workdir": workdir} | ({} if split == "test" else {"split": split})
    for name, value in options.items():
        given |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
    known = {name for name, _ in all_fields(EvaluateCommand)} - {"score"}  # for which there is Translator.score
    if unknown := next((name for name in given if name not in known), None):
        raise UserError(f"unknown option {unknown}{suggestion(unknown, EvaluateCommand)}")
    if isinstance(given.get("reference"), str | Path):
        given["reference"] = [given["reference"]]
    command = EvaluateCommand.resolve(given)
    with loaded(command) as translator:
        return score_translations(translator, command)[-1]
