"""Runs the project's commands as real processes, forked from one that has already imported JAX and the project.

The imports take about four seconds, longer than everything else that most commands in the tests do.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROJECT_ON_PATH = {"PYTHONPATH": str(ROOT)}  # for a script that is started from scratch, wherever it is
PRELOADED = [
    "lingua_flax.commands.compare",
    "lingua_flax.commands.distill",
    "lingua_flax.commands.evaluate",
    "lingua_flax.commands.export",
    "lingua_flax.commands.serve",
    "lingua_flax.commands.main",
    "lingua_flax.commands.train",
    "lingua_flax.commands.translate",
    "lingua_flax.commands.verify_resume",
    "lingua_flax.evaluation.comparison",
    "lingua_flax.evaluation.evaluate",
    "matplotlib.figure",
    "lingua_flax.training.reports.data_report",
    "lingua_flax.training.reports.dry_run",
    "tensorboardX.event_file_writer",
    "lingua_flax.training.loop",
    "lingua_flax.training.preparation",
    "lingua_flax.inspection.attention_figures",
    "lingua_flax.inspection.attention_maps",
    "lingua_flax.runs.verification.comparison",
    "lingua_flax.runs.verification.killed_run",
]
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(PRELOADED)


def run_forked(
    program: str | Path,
    *arguments: object,
    timeout: float,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    input: str = "",  # the name that subprocess.run uses
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, like subprocess.run with text pipes.

    Args:
      program: the name of a command of lingua-flax, or the path of a script.
      env: the environment, by default that of this process; variables read when JAX is imported have no effect.

    Raises:
      subprocess.TimeoutExpired: the program did not end in time; it was killed.
    """
    command = [str(program), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(input, encoding="utf-8")
        process = _server.Process(target=_execute, args=(command, cwd, dict(env or os.environ), streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout)
        stdout, stderr = (stream.read_text(encoding="utf-8", errors="strict") for stream in streams[1:])
        return subprocess.CompletedProcess(command, process.exitcode, stdout, stderr)


def python(program: str | Path) -> list[str]:
    """Returns the beginning of a command line that runs a command of lingua-flax, a script, or code after "-c"."""
    is_command = program != "-c" and not str(program).endswith(".py")
    return [sys.executable, *(["-m", "lingua_flax"] if is_command else []), str(program)]


def _execute(command: list[str], cwd: Path, env: dict[str, str], streams: list[Path]) -> None:
    """Turns this process into the program, with the given streams, working directory, environment and arguments."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, (stream, flags) in enumerate(zip(streams, (os.O_RDONLY, _CREATE, _CREATE), strict=True)):
        os.dup2(os.open(stream, flags), number)
    sys.stdin, sys.stdout, sys.stderr = (  # multiprocessing has not connected those of a forked process to any file
        os.fdopen(number, mode, encoding="utf-8") for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    is_script = command[0].endswith(".py")
    sys.argv = command if is_script else ["lingua-flax", *command]
    logging.root.handlers.clear()  # added by the import of some library
    status: Any = 0
    try:
        if is_script:
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module("lingua_flax", run_name="__main__")
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):  # a message, which Python would print
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_APPEND
