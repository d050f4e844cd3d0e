"""SIGINT and SIGTERM from a command's first import to the end of its process, and how little it imports before it needs
more."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.conftest import HUNG_AFTER, ROOT
from tests.processes import start_command, wait_for

COMMANDS = ("train.py", "evaluate.py", "translate.py", "verify_resume.py")
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
HEAVY = {"jax", "numpy", "pydantic", "tyro", "rich", "orbax", "matplotlib"}
# Python runs this file of its path before a script. The moment is the import of a module, or one in the end.
SENDER = """
import atexit, os, sys

moment = os.environ["MOMENT"]

def send(kill=os.kill, process=os.getpid(), number=int(os.environ["NUMBER"])):
    kill(process, number)

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == moment:
            send()
        if name == "commands" and moment == "exit functions":
            atexit.register(send)

class Last:
    __del__ = lambda self, send=send: send()

sys.meta_path.insert(0, AtImport())
if moment == "last exit function":
    atexit.register(send)  # the first one registered
if moment == "end of all modules":
    last = Last()
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory) -> dict[str, list[str]]:
    """For each command some that it accepts, so that it comes to its work; there is none to do."""
    workdir = tmp_path_factory.mktemp("untrained")
    (workdir / "config.toml").write_bytes((ROOT / "configs" / "tiny.toml").read_bytes())
    config = ["--config", "configs/tiny.toml"]
    return {
        "train.py": [*config, "--dry-run"],
        "evaluate.py": ["--workdir", str(workdir)],
        "translate.py": ["--workdir", str(workdir)],
        "verify_resume.py": config,
    }


@pytest.fixture
def signalled(run, tmp_path):
    """Runs a command that gets a signal at a moment."""
    (tmp_path / "sitecustomize.py").write_text(SENDER)

    def run_signalled(moment: str, number: int, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        own = {"PYTHONPATH": str(tmp_path), "MOMENT": moment, "NUMBER": str(int(number))}
        return run(program, *options, env=os.environ | own)

    return run_signalled


@pytest.mark.parametrize(("number", "status"), SIGNALS)
@pytest.mark.parametrize("program", COMMANDS)
def test_a_signal_during_any_import_ends_the_command_in_one_line(signalled, arguments, program, number, status):
    """From the first module behind the one that takes over the signals."""
    for module in ("commands", "logging", "pydantic", "tyro", "jax", "numpy"):
        done = signalled(module, number, program, *arguments[program])
        assert done.stderr == f"stopped by {signal.Signals(number).name}\n", module
        assert (done.returncode, done.stdout) == (status, ""), module


@pytest.mark.parametrize(("number", "status"), SIGNALS)
@pytest.mark.parametrize("program", COMMANDS)
def test_a_signal_while_the_interpreter_finishes_is_no_traceback(signalled, program, number, status):
    done = signalled("exit functions", number, program, "--help")
    assert (done.returncode, done.stderr) == (status, f"stopped by {signal.Signals(number).name}\n")
    for moment in ("last exit function", "end of all modules"):  # too late: everything is done
        done = signalled(moment, number, program, "--help")
        assert (done.returncode, done.stderr) == (0, ""), moment
        assert "--help" in done.stdout


def imported_by(code: str, *arguments: str) -> set[str]:
    """The heavy modules that a process has imported when it ends."""
    report = f"import atexit, sys; atexit.register(lambda: print('\\n', *{HEAVY} & set(sys.modules)))\n"
    command = [sys.executable, "-c", report + code, *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=HUNG_AFTER)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("program", COMMANDS)
def test_a_process_that_is_spawned_imports_next_to_nothing(program):
    """Python's multiprocessing has it run the main module anew, under another name."""
    assert imported_by(f"import runpy; runpy.run_path({program!r}, run_name='__mp_main__')") == set()


@pytest.mark.parametrize("options", [["--help"], ["--no-such-option", "1"]])
@pytest.mark.parametrize("program", COMMANDS)
def test_help_and_wrong_options_do_not_wait_for_jax(arguments, program, options):
    as_script = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    found = imported_by(as_script, program, *arguments[program], *options)
    assert "pydantic" in found
    assert not found & {"jax", "numpy", "orbax", "matplotlib"}


def test_a_signal_ends_both_verify_resume_and_the_training_that_it_waits_for(toy, tmp_path):
    process = start_command("verify_resume.py", "--config", toy, "--workdir", tmp_path / "both")
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
    """Exit status and stderr of a command that does nothing but what sends it SIGTERM."""
    program = (
        "import os, signal, sys\nfrom commands.main import main\nfrom host.interruption import interruption\n"
        f"def work(_):\n    {work}\ninterruption.install()\nsys.exit(main(work))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, timeout=HUNG_AFTER)
    return done.returncode, done.stderr


def test_a_signal_after_the_last_check_is_not_lost():
    work = "with interruption.deferred(): signal.raise_signal(signal.SIGTERM); os.write(2, b'saved\\n')"
    assert interrupted(work) == (143, "saved\nstopped by SIGTERM\n")


def test_a_signal_ends_a_process_without_standard_error():
    assert interrupted("os.close(2); signal.raise_signal(signal.SIGTERM)") == (143, "")
