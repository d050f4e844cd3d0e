"""The notebook on machines like Colab's, with Drive accepted, declined and lost, and on machines that are lost.

A machine is a Python environment with Colab's JAX, Flax and NumPy, and caches and a home of its own. Drive is a file
system like Google's (tests/scripts/like_drive.py), which also loses what was written last.
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
from tests.helpers.commands import SMALL_NETWORK
from tests.helpers.deno import ask
from tests.helpers.drive import lose_what_is_new, upload
from tests.processes import digests, metrics, wait_for

SCRIPTS = ROOT / "tests" / "scripts"
PREINSTALLED = ("--requirement", str(ROOT / "constraints-floor.txt"), "ipython", "packaging", "safetensors")
PYTHON = shutil.which("python3.13") or sys.executable  # Colab has Python 3.13
OPTIONS = (
    f"{SMALL_NETWORK} --training.num-steps 60 --training.eval-every 20 --training.checkpoint-every 5 "
    "--training.log-every 1 --training.tokens-per-batch 512 --tokenizer.vocab-size 500"
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that are installed on every machine from the beginning."""
    environment = tmp_path_factory.mktemp("preinstalled")
    subprocess.run([PYTHON, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "python", "-m", "pip", "install", "--quiet", *PREINSTALLED], check=True)
    (site_packages,) = environment.glob("lib/python3.*/site-packages")
    shutil.copytree(SCRIPTS / "colab", site_packages / "google" / "colab")
    shutil.copy(SCRIPTS / "like_drive.py", site_packages / "sitecustomize.py")
    return site_packages


class Machine:
    """A machine on which all cells of the notebook are run."""

    def __init__(self, folder: Path, drive: Path, packages: Path, **environment: str):
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder / "python"], check=True)
        (site_packages,) = folder.glob("python/lib/python3.*/site-packages")
        shutil.copytree(packages, site_packages, dirs_exist_ok=True)
        self.python, content = folder / "python" / "bin" / "python", folder / "content"
        self.run, self.page = content / "lingua-flax-runs" / "tiny-short", content / "translator.html"
        content.mkdir()
        drive.mkdir(exist_ok=True)
        (content / "drive").symlink_to(drive)
        parameters = {"REPOSITORY": f"file://{ROOT}", "FOLDER": str(content), "OPTIONS": OPTIONS}
        nbformat.write(with_parameters(read_notebook(COLAB), parameters), content / "notebook.ipynb")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONUNBUFFERED": "1",  # a notebook shows every line at once
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PIP_CACHE_DIR": str(packages.parent / "pip-cache"),  # only saves time
            "LIKE_DRIVE": str(content / "drive"),
            **environment,
        }
        self.log, self.red = folder / "log", folder / "red"
        command: list[str | Path] = [self.python, SCRIPTS / "play_notebook.py", "notebook.ipynb"]
        with self.log.open("w") as log, self.red.open("w") as red:
            self.process = subprocess.Popen(
                command, cwd=content, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=red
            )

    def printed(self) -> str:
        return self.log.read_text()

    def finish(self) -> str:
        """Returns what is printed until the end, after checking that nothing of it is red, and the page."""
        assert self.process.wait() == 0, self.printed()
        text = self.printed()
        assert not self.red.read_text()
        assert not re.search("Traceback|ERROR|[Ee]rror:|conflict", text)
        assert f"downloading {self.page}" in text
        question = {"q": "The cat saw the bank.", "beam": True}
        (answer,) = ask(self.page.read_text(encoding="utf-8"), self.page, [question])
        assert "answer" in answer
        return text

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
@pytest.mark.parametrize("is_declined", [True, False])
def test_training_goes_on_when_drive_is_declined_or_lost(tmp_path: Path, packages: Path, is_declined: bool) -> None:
    drive = tmp_path / "drive"
    declined = {"DRIVE_DECLINED": "1"} if is_declined else {}
    machine = Machine(tmp_path / "machine", drive, packages, **declined)
    message = "Google Drive is not connected, so the run is deleted with this machine."
    if not is_declined:
        message = "Google Drive is lost: the run goes on without it."
        copy = drive / "MyDrive" / "lingua-flax-runs" / "tiny-short" / "checkpoints"
        wait_for(machine.process, lambda: copy.is_dir() and saved_steps(copy))
        drive.rename(tmp_path / "lost")
    text = machine.finish()
    assert text.count(message) == 1
    assert "60 of 60" in text
    assert not list(drive.glob("*"))


@pytest.mark.slow
def test_run_all_continues_on_a_new_machine_wherever_the_last_one_was_lost(tmp_path: Path, packages: Path) -> None:
    drive, uploaded, draw = tmp_path / "drive", tmp_path / "uploaded", random.Random(0)
    copy = drive / "MyDrive" / "lingua-flax-runs" / "tiny-short"
    moments = {
        "compiling": lambda machine: (machine.run / "config.toml").exists(),
        "training": lambda machine: len(saved_steps(copy / "checkpoints")) > 1,
        "copying": lambda machine: (
            set(saved_steps(machine.run / "checkpoints")) - set(saved_steps(copy / "checkpoints"))
        ),
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
        assert ("resuming from step " in machine.printed()) == (steps[-1] > 0)
        steps.append(max(saved_steps(copy / "checkpoints"), default=0))
    assert steps[-1] == 60
    last = Machine(tmp_path / "last", drive, packages)
    text = last.finish()
    assert f"{last.run}: finished: 60 of 60 steps" in text
    assert "Google Drive is" not in text
    # What the machine has is not replaced.
    assert "kept JAX 0.7.2\n" in text
    (site_packages,) = last.python.parent.parent.glob("lib/python3.*/site-packages")
    before, now = ({path.name for path in folder.glob("*.dist-info")} for folder in (packages, site_packages))
    assert before < now
    # The same as a run that was never interrupted, with the packages of the machine.
    train = [str(last.python), "-m", "lingua_flax", "train", "--config", "tiny", *OPTIONS.split(), "--workdir"]
    subprocess.run([*train, tmp_path / "uninterrupted"], check=True, cwd=tmp_path, env=last.environment)
    assert digests(copy) == digests(last.run) == digests(tmp_path / "uninterrupted")
    assert metrics(copy) == metrics(last.run) == metrics(tmp_path / "uninterrupted")
