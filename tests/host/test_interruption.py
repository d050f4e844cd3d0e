"""SIGINT and SIGTERM from a command's first import to the end of its process, and how late it imports slow modules."""

import itertools
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from lingua_flax.commands.main import COMMANDS
from tests.conftest import HUNG_AFTER, ROOT
from tests.processes import start_command, wait_for

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
HEAVY = {"jax", "numpy", "pydantic", "rich", "orbax", "matplotlib"}
# Python runs this file from its path before any script. The moment is the import of a module, or a stage of the exit.
SENDER = """
import atexit, os, sys

moment = os.environ["MOMENT"]

def send(kill=os.kill, process=os.getpid(), number=int(os.environ["NUMBER"])):
    kill(process, number)

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == moment:
            send()
        if name == "lingua_flax.commands" and moment == "exit functions":
            atexit.register(send)

class Last:
    __del__ = lambda self, send=send: send()

sys.meta_path.insert(0, AtImport())
if moment == "last exit function":
    atexit.register(send)  # registered first, so called last
if moment == "end of all modules":
    last = Last()
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory) -> dict[str, list[str]]:
    """Returns valid arguments for each command, which bring it to its work; there is no work to do."""
    workdir = tmp_path_factory.mktemp("untrained")
    (workdir / "config.toml").write_bytes((ROOT / "configs" / "tiny.toml").read_bytes())
    config = ["--config", "configs/tiny.toml"]
    return {
        "train": [*config, "--dry-run"],
        "distill": ["--workdir", str(workdir), "--output", str(workdir / "pairs.jsonl")],
        "evaluate": ["--workdir", str(workdir)],
        "export": ["--workdir", str(workdir), "--format", "safetensors", "--output", str(workdir / "exported")],
        "serve": ["--workdir", str(workdir), "--port", "0"],
        "translate": ["--workdir", str(workdir)],
        "verify-resume": config,
    }


@pytest.fixture
def signalled(run, tmp_path):
    """Runs a command that receives a signal at a given moment."""
    (tmp_path / "sitecustomize.py").write_text(SENDER)

    def run_signalled(moment: str, number: int, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        variables = {"PYTHONPATH": str(tmp_path), "MOMENT": moment, "NUMBER": str(int(number))}
        return run(program, *options, env=os.environ | variables)

    return run_signalled


@pytest.mark.parametrize("program", COMMANDS)
def test_signal_during_any_import_ends_command_with_one_line(signalled, arguments, program):
    """Tested from the first module after the one that handles the signals, alternately with both signals."""
    modules = ("lingua_flax.commands", "logging", "pydantic", "jax", "numpy")
    for module, (number, status) in zip(modules, itertools.cycle(SIGNALS), strict=False):
        result = signalled(module, number, program, *arguments[program])
        assert result.stderr == f"stopped by {signal.Signals(number).name}\n", module
        assert (result.returncode, result.stdout) == (status, ""), module


@pytest.mark.parametrize(
    ("program", "number", "status"),
    [(program, *end) for program, end in zip(COMMANDS, itertools.cycle(SIGNALS), strict=False)],
)
def test_signal_during_interpreter_exit_causes_no_traceback(signalled, program, number, status):
    result = signalled("exit functions", number, program, "--help")
    assert (result.returncode, result.stderr) == (status, f"stopped by {signal.Signals(number).name}\n")
    for moment in ("last exit function", "end of all modules"):  # too late: the work is done
        result = signalled(moment, number, program, "--help")
        assert (result.returncode, result.stderr) == (0, ""), moment
        assert "--help" in result.stdout


RUNS = """
import contextlib, io, json, runpy, sys

def run(name, *arguments):
    sys.argv[:] = ["lingua-flax", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_module("lingua_flax", run_name=name)

for name, *arguments in json.loads(sys.argv[1]):
    run(name, *arguments)
    print(json.dumps(sorted(sys.modules)))
"""


def heavy_imports(*runs: list[str]) -> list[set[str]]:
    """Runs the program again and again in a new process.

    Args:
      runs: for each time, the __name__ of the main module and the arguments.

    Returns:
      for each time, the heavy modules that have been imported when it ends.
    """
    result = subprocess.run(
        [sys.executable, "-c", RUNS, json.dumps(runs)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=HUNG_AFTER,
    )
    return [HEAVY & set(json.loads(line)) for line in result.stdout.splitlines()]


def test_spawned_process_imports_no_heavy_module():
    """Python's multiprocessing makes it run the main module again, under another name."""
    assert heavy_imports(["__mp_main__"]) == [set()]


def test_help_and_invalid_options_do_not_import_jax(arguments):
    options = (["--help"], ["--no-such-option", "1"])
    runs = [["__main__", program, *arguments[program], *each] for program in COMMANDS for each in options]
    for command, imported in zip(runs, heavy_imports(*runs), strict=True):
        assert "pydantic" in imported, command
        assert not imported & {"jax", "numpy", "orbax", "matplotlib"}, command


def test_signal_ends_verify_resume_and_its_training(toy, tmp_path):
    process = start_command("verify-resume", "--config", toy, "--workdir", tmp_path / "both")
    parent = psutil.Process(process.pid)
    wait_for(process, parent.children)
    (training,) = parent.children()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=HUNG_AFTER)
    assert process.returncode == 143, errors
    assert errors.endswith("stopped by SIGTERM\n")
    assert "Traceback" not in errors
    assert not training.is_running()


def interrupted(work: str) -> tuple[int, str]:
    """Returns the exit status and stderr of a command that only does this work, which sends it SIGTERM."""
    program = (
        "import os, signal, sys\nfrom lingua_flax.commands.main import exit_status\n"
        "from lingua_flax.host.interruption import interruption\n"
        f"def work(_):\n    {work}\ninterruption.install()\nsys.exit(exit_status(work, []))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, timeout=HUNG_AFTER)
    return result.returncode, result.stderr


def test_signal_after_the_last_check_is_not_lost():
    work = "with interruption.deferred(): signal.raise_signal(signal.SIGTERM); os.write(2, b'saved\\n')"
    assert interrupted(work) == (143, "saved\nstopped by SIGTERM\n")


def test_signal_ends_process_without_standard_error():
    assert interrupted("os.close(2); signal.raise_signal(signal.SIGTERM)") == (143, "")
