"""What people see besides lines of text: tables on stdout, and a progress bar on stderr where there is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress
from rich.table import Table


@contextlib.contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, drawn only on a terminal; yields the function that moves it on."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


def print_table(table: Table) -> None:
    """Prints a table on stdout at its own width: nothing in it is cut or wrapped, also in a pipe."""
    console = Console(width=Console(width=1000).measure(table).maximum)
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")  # itself it would end the process with status 1 once a reader such as head has enough
