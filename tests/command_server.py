"""Runs the project's commands: in this process, or as real processes, forked from one that has imported JAX already.

The imports take about four seconds, longer than everything else that most commands in the tests do. A command in this
process also finds the programs that it and the tests before it have compiled.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
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
    "lingua_flax.commands.train",
    "lingua_flax.commands.translate",
    "lingua_flax.commands.verify_resume",
    "lingua_flax.evaluation.comparison",
    "lingua_flax.evaluation.evaluate",
    "matplotlib.figure",
    "lingua_flax.training.reports.dry_run",
    "tensorboardX.event_file_writer",
    "lingua_flax.training.trainer",
    "lingua_flax.training.preparation",
    "lingua_flax.inspection.attention_files",
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


def run_here(
    program: str, *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None, input: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a command of lingua-flax in this process, as `run_forked` does in another one."""
    from lingua_flax.__main__ import run

    command = [program, *map(str, arguments)]
    # Files, because commands ask for their descriptors.
    with tempfile.TemporaryFile(buffering=0) as out, tempfile.TemporaryFile(buffering=0) as err:
        outputs = [io.TextIOWrapper(file, encoding="utf-8", write_through=True) for file in (out, err)]
        with _as_own_process(cwd, dict(env or os.environ), input, *outputs):
            try:
                status = run(command)
            except SystemExit as end:  # after --help
                status = int(end.code or 0)
        for file in (out, err):
            file.seek(0)
        stdout, stderr = (file.read().decode("utf-8") for file in (out, err))
    return subprocess.CompletedProcess(command, status, stdout, stderr)


@contextlib.contextmanager
def _as_own_process(cwd: Path, env: dict[str, str], text: str, stdout: Any, stderr: Any) -> Iterator[None]:
    """Gives what is run the state of a process of its own, and takes it back."""
    before, arguments, levels = dict(os.environ), sys.argv, {name: logging.getLogger(name).level for name in _LOGGERS}
    handlers, level, stdin = logging.root.handlers[:], logging.root.level, sys.stdin
    os.environ.clear()
    os.environ.update(env)
    logging.root.handlers.clear()
    sys.argv, sys.stdin = ["lingua-flax"], io.TextIOWrapper(io.BytesIO(text.encode("utf-8")), encoding="utf-8")
    try:
        redirected = contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr)
        with contextlib.chdir(cwd), redirected[0], redirected[1], warnings.catch_warnings():
            warnings.resetwarnings()  # to those that a user sees
            for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        logging.root.handlers[:] = handlers
        sys.argv, sys.stdin = arguments, stdin
        for name, own in (levels | {None: level}).items():
            logging.getLogger(name).setLevel(own)


_LOGGERS = ("absl", "jax", "orbax", "matplotlib", "sacrebleu")


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
