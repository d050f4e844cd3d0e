"""Tests leave the user's caches alone: prepared corpora and compiled programs go to a folder of the session."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

# Before anything imports them: the shapes and types in their signatures are checked at every call.
install_import_hook(["model", "training.loss", "translation.search"], "beartype.beartype")

from devices.compilation import set_up_compilation  # noqa: E402
from tests.command_server import ROOT, run_forked  # noqa: E402
from tests.toy import write_corpus  # noqa: E402

# Bounds in seconds, for old machines with other work to do: when a process is taken for hung, and within what time
# something has to be over that takes a second or two, unless it waits for what it should not.
HUNG_AFTER = 900
PROMPTLY = 60


@pytest.fixture(autouse=True, scope="session")
def _compilation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """One cache for the whole session, for the commands that tests run and for what they compile themselves; all test
    processes share it, since a program that was compiled is found under the path of the cache only.

    The default run compiles without most optimizations, in two thirds of the time; where slow tests are wanted too, the
    commands are compiled as users have them.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    os.environ["XDG_CACHE_HOME"] = str(shared / "cache")
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    if request.config.getoption("markexpr") == "not slow":
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    set_up_compilation()
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def run():
    """Runs a command of the project as a user would: run("train.py", "--workdir", w) -> CompletedProcess of text."""

    def run_command(program: str, *arguments: object, env: dict[str, str] | None = None, **options):
        own = {name: value for name, value in (env or {}).items() if os.environ.get(name) != value}
        options = {"timeout": HUNG_AFTER} | options
        if program == "-c" or any(name.startswith(("JAX_", "PYTHON")) for name in own):  # read when a process starts
            command = [sys.executable, str(program), *map(str, arguments)]
            defaults = {"cwd": ROOT, "capture_output": True, "text": True}
            if "input" not in options:
                defaults["stdin"] = subprocess.DEVNULL
            return subprocess.run(command, **(defaults | options), env=env)
        return run_forked(program, *arguments, env=env, **options)

    return run_command


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder with Multi30k, or a skip."""
    folder = Path(os.environ.get("LINGUA_MULTI30K") or ROOT.parent / "shared" / "data" / "multi30k")
    if not (folder / "train.en.gz").exists():
        pytest.skip(f"Multi30k is not in {folder}; set LINGUA_MULTI30K")
    return folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Path:
    """The config of the toy corpus."""
    return write_corpus(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def trained(toy, run, tmp_path_factory):
    """A workdir trained without interruption, and what the command printed."""
    workdir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    return workdir, run("train.py", "--config", toy, "--workdir", workdir)
