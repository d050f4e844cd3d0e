"""Fixtures shared by all tests. The user's caches are left alone: tests have a cache folder of their own."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jaxtyping import install_import_hook

# Before anything imports these modules: their calls are checked against the shapes and types in the signatures.
install_import_hook(
    [
        "lingua_flax.model",
        "lingua_flax.training.loss",
        "lingua_flax.translation.search",
    ],
    "beartype.beartype",
)

from lingua_flax.devices.compilation import set_up_compilation  # noqa: E402
from lingua_flax.devices.topology import silence_libtpu  # noqa: E402
from tests.command_server import ROOT, python, run_forked, run_here  # noqa: E402
from tests.toy import write_corpus  # noqa: E402

# Timeouts in seconds, generous enough for slow, busy machines: after how long a process counts as hung, and how long
# something may take that needs a second or two unless it waits for the wrong thing.
HUNG_AFTER = 900
PROMPTLY = 240
HERE = (
    "train",
    "evaluate",
    "translate",
    "compare",
    "export",
    "clean",
    "import",
)  # commands that run in the process of the tests


def pytest_configure(config: pytest.Config) -> None:
    """Makes compiling quicker, before an imported test module can start XLA, which then has read its flags.

    In the default run, commands are compiled without most optimizations; if slow tests are selected too, they are
    compiled as they are for users. The flags, and fewer collections of garbage, which also call JAX, take
    tests/model/test_transformer.py from 53 to 33 s of CPU time.
    """
    gc.set_threshold(10_000)
    if config.getoption("markexpr") == "not slow":
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ.setdefault("XLA_FLAGS", flags)


@pytest.fixture(autouse=True, scope="session")
def _compilation(tmp_path_factory: pytest.TempPathFactory):
    """Gives the session one cache folder, for the commands that tests run and for what tests compile themselves.

    All test processes share it: the key of a compiled program depends on the path of the cache. What tests compile
    themselves is always compiled without most optimizations.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    os.environ["XDG_CACHE_HOME"] = str(shared / "cache")
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    silence_libtpu()  # for what tests compile themselves
    set_up_compilation()
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def run():
    """Runs a command as a user does: run("train", "--workdir", w) returns a CompletedProcess with text.

    Most run in this process; `process=True` is for what depends on one of its own.
    """

    def run_command(program: str, *arguments: object, env: dict[str, str] | None = None, process=False, **options):
        own = {name: value for name, value in (env or {}).items() if os.environ.get(name) != value}
        is_read_at_start = any(name.startswith(("JAX_", "PYTHON")) for name in own)
        if program == "-c" or is_read_at_start:
            command = [*python(program), *map(str, arguments)]
            defaults: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True}
            if "input" not in options:
                defaults["stdin"] = subprocess.DEVNULL
            return subprocess.run(command, **({"timeout": HUNG_AFTER} | defaults | options), env=env)
        is_default_run = "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ  # otherwise, commands run as users run them
        if is_default_run and program in HERE and not (process or own or "timeout" in options):
            return run_here(program, *arguments, env=env, **options)
        return run_forked(program, *arguments, env=env, **({"timeout": HUNG_AFTER} | options))

    return run_command


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """Returns the folder with Multi30k, or skips the test."""
    folder = Path(os.environ.get("LINGUA_MULTI30K") or ROOT.parent / "shared" / "data" / "multi30k")
    if not (folder / "train.en.gz").exists():
        pytest.skip(f"Multi30k is not in {folder}; set LINGUA_MULTI30K")
    return folder


@pytest.fixture(scope="session")
def python_with_transformers(tmp_path_factory) -> str | Path:
    """Returns a Python with transformers, torch and sentencepiece, installed unless LINGUA_TRANSFORMERS names one."""
    if own := os.environ.get("LINGUA_TRANSFORMERS"):
        return own
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    new = environment / "bin" / "python"
    subprocess.run([new, "-m", "pip", "install", "-q", "transformers", "torch", "sentencepiece"], check=True)
    return new


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Path:
    """Returns the config file of the toy corpus."""
    return write_corpus(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def trained(toy, run, tmp_path_factory):
    """Returns a workdir trained without interruption, which tests must not change, and the completed command."""
    workdir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    return workdir, run("train", "--config", toy, "--workdir", workdir)
