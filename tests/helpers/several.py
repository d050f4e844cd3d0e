"""Runs and starts a command as several processes of one run, on the loopback interface."""

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.processes import free_port, start_command

Completed = subprocess.CompletedProcess[str]


def _arguments_of_each(count: int, common: Sequence[object], each: Sequence[Sequence[object]]) -> list[list[object]]:
    together = [*common, "--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", count]
    return [[*together, "--process-id", number, *own] for number, own in enumerate(each or [()] * count)]


def run_together(
    run: Callable[..., Completed], count: int, *command: object, each: Sequence[Sequence[object]] = ()
) -> list[Completed]:
    """Runs a command as so many processes; `each` holds further options of each process."""
    with ThreadPoolExecutor(count) as threads:
        arguments = _arguments_of_each(count, command, each)
        return list(threads.map(lambda of_process: run(*of_process, process=True), arguments))


def start_together(count: int, *command: object, **options: Any) -> list[subprocess.Popen]:
    """Starts a command as so many processes."""
    return [start_command(*of_process, **options) for of_process in _arguments_of_each(count, command, ())]
