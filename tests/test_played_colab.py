"""The notebook on machines like Colab's, which are lost again and again, each time followed by "Run all" on a new one.

A machine is a Python environment with another JAX, Flax and NumPy, and caches and a home of its own. The runs are on a
file system like Google Drive's (tests/scripts/like_drive.py), which also loses what was written last.
"""

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from lingua_flax.runs.checkpoint import saved_steps
from notebooks.execute import COLAB, read_notebook, with_parameters
from tests.conftest import ROOT
from tests.processes import digests, metrics, wait_for
from tests.runs.test_drive import lose_what_is_new, upload

SCRIPTS = ROOT / "tests" / "scripts"
PREINSTALLED = ("jax==0.10.0", "jaxlib==0.10.0", "flax==0.12.6", "numpy==2.0.2", "ipython", "packaging")
OPTIONS = (
    "--training.num-steps 60 --training.eval-every 20 --training.checkpoint-every 5 --training.log-every 1 "
    "--training.tokens-per-batch 512 --model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.embed-dim 16 "
    "--model.num-heads 2 --model.mlp-dim 32 --tokenizer.vocab-size 500"
)


def python_of_colab() -> str:
    """Returns a Python 3.12, which Colab has, or if there is none the one of the tests."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(["python3.12", "--version"], check=True, capture_output=True)
        return "python3.12"
    return sys.executable


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that are installed on every machine from the beginning."""
    environment = tmp_path_factory.mktemp("preinstalled")
    subprocess.run([python_of_colab(), "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "python", "-m", "pip", "install", "--quiet", *PREINSTALLED], check=True)
    (site_packages,) = environment.glob("lib/python3.*/site-packages")
    stand_ins = site_packages / "google" / "colab"
    stand_ins.mkdir(parents=True)
    for name in ("drive", "output"):
        shutil.copy(SCRIPTS / f"colab_{name}.py", stand_ins / f"{name}.py")
    shutil.copy(SCRIPTS / "like_drive.py", site_packages / "sitecustomize.py")
    return site_packages


class Machine:
    """A machine on which all cells of the notebook are run."""

    def __init__(self, folder: Path, drive: Path, packages: Path):
        subprocess.run([python_of_colab(), "-m", "venv", "--without-pip", folder / "python"], check=True)
        (site_packages,) = folder.glob("python/lib/python3.*/site-packages")
        shutil.copytree(packages, site_packages, dirs_exist_ok=True)
        self.python, content = folder / "python" / "bin" / "python", folder / "content"
        content.mkdir()
        parameters = {"REPOSITORY": f"file://{ROOT}", "RUNS": f"{drive}/runs", "OPTIONS": OPTIONS, "SECOND": None}
        parameters["SENTENCE"] = "The cat's friend saw the bank."
        nbformat.write(with_parameters(read_notebook(COLAB), parameters), content / "notebook.ipynb")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONUNBUFFERED": "1",  # a notebook shows every line at once
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PIP_CACHE_DIR": str(packages.parent / "pip-cache"),  # only saves time
            "LIKE_DRIVE": str(drive),
        }
        self.log = folder / "log"
        command = [self.python, SCRIPTS / "play_notebook.py", "notebook.ipynb"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=content, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def printed(self) -> str:
        return self.log.read_text()

    def runs(self, command: str) -> bool:
        """Returns whether this command of lingua-flax is running."""
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = psutil.Process(self.process.pid).children(recursive=True)
            return any(command in process.cmdline()[2:4] for process in processes)
        return False

    def lose(self) -> None:
        """Ends all processes at once: none of them learns of the end of another."""
        kernel = psutil.Process(self.process.pid)
        processes = [kernel, *kernel.children(recursive=True)]
        for signal in ("suspend", "kill"):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    getattr(process, signal)()
        psutil.wait_procs(processes)


@pytest.mark.slow
def test_run_all_continues_on_a_new_machine_wherever_the_last_one_was_lost(tmp_path: Path, packages: Path) -> None:
    drive, uploaded, draw = tmp_path / "drive", tmp_path / "uploaded", random.Random(0)
    run = drive / "runs" / "tiny"
    moments = {
        "compiling": lambda machine: (run / "config.toml").exists(),
        "training": lambda machine: (run / "metrics.jsonl").exists() and len(metrics(run)) > 12,
        # What the last machine left half saved is removed before the first step.
        "saving": lambda machine: " started: " in machine.printed() and list((run / "checkpoints").glob("*tmp*")),
        "evaluating": lambda machine: machine.runs("evaluate"),
    }
    steps = [0]
    for name, moment in moments.items():
        machine = Machine(tmp_path / name, drive, packages)
        wait_for(machine.process, lambda: moment(machine))  # noqa: B023
        upload(drive, uploaded)
        time.sleep(draw.random())
        machine.lose()
        lose_what_is_new(drive, uploaded, draw)
        text = machine.printed()
        assert "keeping JAX 0.10.0 of this machine" in text
        resumed = re.search(r"resuming from step (\d+)", text)
        assert bool(resumed) == (steps[-1] > 0)
        steps.append(max(saved_steps(run / "checkpoints"), default=0))
    assert steps[-1] == 60
    last = Machine(tmp_path / "last", drive, packages)
    assert last.process.wait() == 0, last.printed()
    text = last.printed()
    assert f"{run}: finished: 60 of 60 steps" in text
    cells, _, report = text.partition("--- report")
    assert len(re.findall(r"│ BLEU +│ \d", cells)) == len(re.findall(r"│ BLEU +│ \d", report)) == 2
    assert "page: <title>Lingua Flax" in cells
    # The same as a run that was never interrupted, with the packages of the machine.
    train = [last.python, "-m", "lingua_flax", "train", "--config", "tiny", *OPTIONS.split(), "--workdir"]
    subprocess.run([*train, tmp_path / "uninterrupted"], check=True, cwd=tmp_path, env=last.environment)
    assert digests(run) == digests(tmp_path / "uninterrupted")
    assert metrics(run) == metrics(tmp_path / "uninterrupted")
