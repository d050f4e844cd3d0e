"""Tables on stdout and what they show, and a progress bar on stderr if it is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    import numpy as np

MAX_TEXT_LENGTH = 36  # characters of a sentence in a table


@contextlib.contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr, but only on a terminal; yields the function that advances it by some items."""
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())  # the clock moves while programs are compiled
    console = console_for_progress()
    with Progress(*columns, console=console, disable=console.quiet, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, advance=count)


def console_for_progress() -> Console:
    """Returns a console that prints on stderr, but only on a terminal: Rich 13 ends a disabled bar with a line, too."""
    console = Console(stderr=True)
    console.quiet = not console.is_terminal
    return console


def share(count: int | np.integer | None, total: int) -> str:
    """Returns a count and its share of the total; "" for None."""
    if not count:
        return "" if count is None else "0"
    return f"{count:,} ({count / total:.2%})" if count / total >= 0.0001 else f"{count:,} (<0.01%)"


def excerpt(text: str) -> str:
    """Returns the beginning of a text, with spaces for characters that could move a terminal's cursor."""
    text = text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"
    return "".join(character if character.isprintable() else " " for character in text)


def print_table(table: Table) -> None:
    """Prints a table on stdout at its natural width: nothing is cut or wrapped, not even in a pipe."""
    console = Console(width=Console(width=1000).measure(table).maximum)
    with console.capture() as captured:
        console.print(table)
    # Console.print would itself end the process, with status 1, when a reader such as head closes the pipe.
    print(captured.get(), end="")
