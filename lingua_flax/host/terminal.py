"""Tables on stdout, and a progress bar on stderr if it is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress
from rich.table import Table


@contextlib.contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr, but only on a terminal; yields the function that advances it by some items."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, advance=count)


def print_table(table: Table) -> None:
    """Prints a table on stdout at its natural width: nothing is cut or wrapped, not even in a pipe."""
    console = Console(width=Console(width=1000).measure(table).maximum)
    with console.capture() as captured:
        console.print(table)
    # Console.print would itself end the process, with status 1, when a reader such as head closes the pipe.
    print(captured.get(), end="")
