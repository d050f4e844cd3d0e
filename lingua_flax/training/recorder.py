"""The output of a run: metrics.jsonl, event files, curves.png, progress on stderr and a final table on stdout."""

import logging
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lingua_flax.host.figures import save_figure
from lingua_flax.host.terminal import console_for_progress, print_table
from lingua_flax.options.schema import Config
from lingua_flax.runs.learning_curves import CURVES_NAME, Curves, draw_curves
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.optimizer import num_warmup_steps
from lingua_flax.training.tensorboard_events import EventFiles
from lingua_flax.training.validation import Validation

CHRF_OF = "validation_chrf_"  # and a direction, such as en-de
# Increase of the loss with shuffled sources, in nats per token, below which the model is taken to ignore its sources.
# Measured: at most 0.005 on a toy corpus with misaligned lines; below it in healthy runs only during warm-up, with 0.15
# (toy), 5 (tiny.toml) and 1.2 (Multi30k) soon after.
MIN_SHUFFLED_LOSS_GAP = 0.05
OnMetrics = Callable[[dict[str, Any]], object]
log = logging.getLogger(__name__)


class Recorder:
    """Writes metrics and shows progress; a context manager, which restores the terminal on exit."""

    def __init__(
        self,
        workdir: Workdir,
        title: str,
        config: Config,
        num_steps: int,
        first_step: int = 0,
        logged_lines: Sequence[dict[str, Any]] = (),
        bleu_description: str = "greedy",
        on_metrics: OnMetrics = lambda line: None,
    ):
        """Creates the recorder of a run, new or resumed after `first_step` steps with these lines of metrics.jsonl.

        `on_metrics` is called with each line that is added to metrics.jsonl.
        """
        self._workdir, self._title, self._config, self._num_steps = workdir, title, config, num_steps
        self._on_metrics = on_metrics
        self._warmup_steps = num_warmup_steps(config.optimizer, num_steps)
        self._is_drawn = False
        self._curves, self._bleu_description = Curves(logged_lines), bleu_description
        self._events = None
        if config.training.tensorboard:
            self._events = EventFiles(workdir.path, logged_lines, first_step)
        console, times = console_for_progress(), (TimeElapsedColumn(), TimeRemainingColumn())
        columns = ("step", MofNCompleteColumn(), BarColumn(), "{task.fields[status]}", *times)
        self._bar = Progress(*columns, console=console, disable=console.quiet)
        self._task = self._bar.add_task("training", total=num_steps, completed=first_step, status="compiling")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if self._events:
            self._events.close()
        if error is None and not self._is_drawn:
            self._draw()

    def steps(self, lines: list[dict[str, Any]]) -> None:
        """Writes a line of metrics for each step and shows the progress at the last one."""
        self._write(lines)
        last = lines[-1]
        step, rate = last["step"], last["tokens_per_second"]
        loss = math.nan if last["loss"] is None else last["loss"]
        real = sum(line["real_tokens"] for line in lines) / len(lines)
        status = f"loss {loss:.3f}  {rate:,.0f} target tokens/s  {real:.0%} real  {last['idle']:.1%} idle"
        self._bar.update(self._task, completed=step, status=status)
        is_due = step % self._config.training.log_every == 0 or step == self._num_steps
        if is_due and not self._bar.console.is_terminal:
            left = timedelta(seconds=round((self._num_steps - step) * last["tokens"] / rate if rate else 0.0))
            message = "step %d/%d  %s  learning rate %.2e  %s left"
            log.info(message, step, self._num_steps, status, last["learning_rate"], left)

    def ends_at(self, step: int) -> None:
        """Shows the progress towards this step from now on, because the run ends there."""
        self._num_steps = step
        self._bar.update(self._task, total=step)

    def validation(self, step: int, result: Validation, seconds: float, *, best: bool) -> None:
        """Writes a line of metrics for a validation, and shows the result with its sample translations."""
        line = {
            "step": step,
            "validation_loss": result.loss,
            "validation_loss_shuffled": result.shuffled_loss,
            "validation_chrf": result.chrf,
            "validation_bleu": result.bleu,
            **{f"{CHRF_OF}{direction}": chrf for direction, chrf in result.chrf_by_direction.items()},
            "validation_seconds": seconds,
            "samples": [sample._asdict() for sample in result.samples],
        }
        self._write([line])
        self._draw()
        shuffled, gap = "", math.inf
        if result.shuffled_loss is not None:
            shuffled = f" ({result.shuffled_loss:.3f} with the sources shuffled)"
            gap = result.shuffled_loss - result.loss
        chrf = f"{result.chrf:.2f}{', the best so far' if best else ''}"
        bleu = f"{result.bleu:.2f} ({self._bleu_description})"
        log.info("validation at step %d: loss %.3f%s, chrF %s, BLEU %s", step, result.loss, shuffled, chrf, bleu)
        if result.chrf_by_direction:
            each = (f"{direction} {chrf:.2f}" for direction, chrf in result.chrf_by_direction.items())
            log.info("these are means; chrF: %s", ", ".join(each))
        if step >= self._warmup_steps and gap < MIN_SHUFFLED_LOSS_GAP:
            log.warning(
                "the loss is hardly worse with the sources shuffled: so far the model ignores the sentences that it "
                "translates. If this persists, check that the two sides of the corpus are aligned (lingua-flax clean "
                "--dry-run), train longer, or lower optimizer.peak_lr"
            )
        for sample in result.samples:
            for name, text in sample._asdict().items():
                log.info("  %-11s  %s", name, text)

    def _write(self, lines: list[dict[str, Any]]) -> None:
        self._workdir.append_metrics(lines)
        self._is_drawn = False
        for line in lines:
            self._curves.add(line)
        if self._events:
            self._events.write(lines)
        for line in lines:
            self._on_metrics(line)

    def _draw(self) -> None:
        self._is_drawn = True
        figure = draw_curves({"validation": [self._curves]}, self._title)
        save_figure(figure, self._workdir.path / CURVES_NAME)


def show_table(title: str, rows: dict[str, str]) -> None:
    """Prints a table of names and values on stdout."""
    table = Table(title=escape(title), show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    print_table(table)
