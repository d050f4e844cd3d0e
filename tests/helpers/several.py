"""Runs a command as several processes of one run."""

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.processes import free_port

Completed = subprocess.CompletedProcess[str]


def run_together(
    run: Callable[..., Completed],
    count: int,
    program: object,
    *arguments: object,
    each: Sequence[Sequence[object]] | None = None,
) -> list[Completed]:
    """Runs a command as so many processes; `each` holds further options of each process."""
    common = (*arguments, "--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", count)
    own = each or [()] * count

    def run_one(number: int) -> Completed:
        return run(program, *common, "--process-id", number, *own[number], process=True)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run_one, range(count)))
