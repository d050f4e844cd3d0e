"""SIGINT and SIGTERM from a command's first import to the end of its process, and how late it imports slow modules."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from lingua_flax.__main__ import COMMANDS
from tests.conftest import HUNG_AFTER
from tests.processes import start_command, wait_for

SCRIPTS = Path(__file__).parent / "scripts"
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
MODULES = ["lingua_flax.commands", "logging", "pydantic", "numpy", "jax"]


@pytest.fixture
def signalled(run, tmp_path):
    """Runs a command that receives a signal at a given moment."""
    shutil.copy(SCRIPTS / "send_signal_at_moment.py", tmp_path / "sitecustomize.py")  # Python runs it before any script

    def run_signalled(moment: str, number: int, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        variables = {"PYTHONPATH": str(tmp_path), "MOMENT": moment, "NUMBER": str(int(number)), "TMPDIR": str(tmp_path)}
        return run(program, *options, env=os.environ | variables)

    return run_signalled


@pytest.mark.parametrize("module", MODULES)
def test_signal_during_an_import_ends_command_with_one_line(signalled, module):
    """In the modules after the one that handles the signals."""
    for number, status in SIGNALS:
        result = signalled(module, number, "train", "--config", "configs/tiny.toml", "--dry-run")
        assert result.stderr == f"stopped by {signal.Signals(number).name}\n"
        assert (result.returncode, result.stdout) == (status, "")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_signal_during_interpreter_exit_causes_no_traceback(signalled, number, status):
    result = signalled("exit functions", number, "train", "--help")
    assert (result.returncode, result.stderr) == (status, f"stopped by {signal.Signals(number).name}\n")
    for moment in ("last exit function", "end of all modules"):  # too late: the work is done
        result = signalled(moment, number, "train", "--help")
        assert (result.returncode, result.stderr) == (0, ""), moment
        assert "--help" in result.stdout


# Runs the program with each name and list of arguments, and prints which heavy modules are imported then.
LIST_IMPORTS = """
import contextlib, io, json, runpy, sys
for name, *arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_module("lingua_flax", run_name=name)
    heavy = {"jax", "numpy", "pydantic", "rich", "orbax", "matplotlib"}
    print(json.dumps([name, *arguments[:1], *sorted(heavy.intersection(sys.modules))]))
"""


def test_spawned_process_help_and_invalid_options_import_no_heavy_module(run):
    """Python's multiprocessing makes a spawned process run the main module again, under another name."""
    runs = [["__main__", program, option] for program in COMMANDS for option in ("--help", "--no-such-option=1")]
    done = run("-c", LIST_IMPORTS, json.dumps([["__mp_main__"], *runs]))
    spawned, *imports = map(json.loads, done.stdout.splitlines())
    assert spawned == ["__mp_main__"]
    assert len(imports) == len(runs)
    for _, command, *imported in imports:
        assert "pydantic" in imported, command
        assert not {"jax", "numpy", "orbax", "matplotlib"}.intersection(imported), command


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


# A command whose only work is to send itself SIGTERM.
INTERRUPTED_WORK = """
import os, signal, sys
from lingua_flax.__main__ import exit_status
from lingua_flax.host.interruption import interruption

def deferred(_):
    with interruption.deferred():
        signal.raise_signal(signal.SIGTERM)
        os.write(2, b"saved\\n")

def ended_by_a_second_signal(_):
    with interruption.deferred():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        os.write(2, b"saved\\n")

def without_standard_error(_):
    os.close(2)
    signal.raise_signal(signal.SIGTERM)

interruption.install()
sys.exit(exit_status(globals()[sys.argv[1]], []))
"""


def test_signal_that_is_delayed_is_not_lost(run):
    stopped = "stopped by SIGTERM\n"
    expected = {"deferred": f"saved\n{stopped}", "ended_by_a_second_signal": stopped, "without_standard_error": ""}
    for work, said in expected.items():
        result = run("-c", INTERRUPTED_WORK, work)
        assert (result.returncode, result.stderr) == (143, said), work
