"""notebooks/colab_tpu.ipynb: its cells, run unchanged by a kernel on the CPU, and its stored outputs.

Two things differ from Colab: mounting Drive creates a folder, and the archive of the TED talks is in another folder.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from notebooks.execute import execute, read_notebook
from runs.checkpoint import saved_steps
from tests.conftest import PROMPTLY, ROOT
from tests.processes import metrics, start_command, wait_for
from tests.ted import SITE, TED, TED_SPLITS, pack_ted

PICTURES = {
    "phrasebook-curve": "tiny/curves.png",
    "phrasebook-attention": "tiny/attention.png",
    "second-curve": "ted_pt_en/curves.png",
    "second-translate": "ted_pt_en/attention.png",
}
WITHOUT_OUTPUT = {"parameters", "commands"}
MOUNT = """
from pathlib import Path

def mount(mountpoint):
    Path(mountpoint, "MyDrive").mkdir(parents=True)
    print("Mounted at", mountpoint)
"""
SMALL = {
    "training.eval-every": 20, "training.log-every": 10, "training.tokens-per-batch": 512, "optimizer.warmup-steps": 5,
    "tokenizer.vocab-size": 500, "model.num-encoder-layers": 1, "model.num-decoder-layers": 1, "model.embed-dim": 16,
    "model.num-heads": 2, "model.mlp-dim": 32,
}  # fmt: skip
SMALLER = SMALL | {"training.eval-every": 5, "tokenizer.vocab-size": 45}


def options(values: dict[str, int]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


PARAMETERS: dict[str, Any] = {
    "REPOSITORY": str(ROOT),
    "PHRASEBOOK_STEPS": 20,
    "PHRASEBOOK_OPTIONS": options(SMALL),
    "SENTENCE": "The cat's friend saw the bank.",
    "SECOND_STEPS": 10,
    "SECOND_SENTENCE": "um dois três",
}


@dataclass
class Executed:
    """The executed notebook, and the folder that contains everything it was given and wrote."""

    cells: dict[str, NotebookNode]
    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "drive" / "MyDrive" / "lingua-flax-runs"

    def printed(self, cell: str) -> str:
        return printed(self.cells[cell])


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def pictures(cell: NotebookNode) -> list[str]:
    return [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]


def source(cell: str) -> str:
    return next(each.source for each in read_notebook().cells if each.id == cell)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp("notebook")
    archive = pack_ted(folder / "archives" / "qi18naacl-dataset.tar.gz")
    drive = folder / "python" / "google" / "colab" / "drive.py"
    drive.parent.mkdir(parents=True)
    drive.write_text(MOUNT)
    site = SITE.format(url=TED, archive=str(archive), report=str(folder / "report"))
    (folder / "python" / "sitecustomize.py").write_text(site)
    environment = {"PYTHONPATH": str(folder / "python"), "JAX_PLATFORMS": "cpu", "PIP_NO_INDEX": "1"}
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    parameters = PARAMETERS | {
        "MOUNT": str(folder / "drive"),
        "SECOND_OPTIONS": [*options(SMALLER), "--data.directory", str(archive.parent)],
    }
    last_cells = [source("phrasebook-train"), "print(sorted({'jax', 'tensorflow'} & set(sys.modules)))"]
    notebook = execute(parameters, folder, environment, last_cells)
    return Executed({cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}, folder)


@pytest.mark.slow
def test_every_cell_runs_without_errors(executed: Executed) -> None:
    for name, cell in executed.cells.items():
        assert cell.execution_count, name
        assert not [output for output in cell.outputs if output.output_type == "error"], name
        assert bool(cell.outputs) == (name not in {*WITHOUT_OUTPUT, "replaced"}), name
        assert "\x1b" not in printed(cell), name  # no colors or progress bars, which are for terminals


@pytest.mark.slow
def test_runs_are_saved_on_the_drive(executed: Executed) -> None:
    assert executed.printed("drive") == f"Mounted at {executed.folder}/drive\nthe runs are in {executed.runs}\n"
    steps = {path.name: [line["step"] for line in metrics(path) if "loss" in line] for path in executed.runs.iterdir()}
    assert steps == {"tiny": list(range(1, 21)), "ted_pt_en": list(range(1, 11))}
    assert not (executed.folder / "lingua-flax-runs").exists()


@pytest.mark.slow
def test_installed_packages_are_not_installed_again(executed: Executed) -> None:
    """The kernel's pip has no index to install anything from."""
    command, last = executed.printed("install").splitlines()
    assert command.startswith("$ python -m pip install --quiet")
    assert "'jax>=" in command
    assert last == "installed for the CPU"


@pytest.mark.slow
def test_the_kernel_imports_neither_jax_nor_tensorflow(executed: Executed) -> None:
    assert "CpuDevice" in executed.printed("devices")
    assert executed.printed("last-1") == "[]\n"
    started = (executed.folder / "report").read_text().splitlines()
    assert {line.split()[0] for line in started} == {"train.py", "evaluate.py", "translate.py"}
    assert {line.split()[1] for line in started} == {"False"}  # whether a command imported TensorFlow


@pytest.mark.slow
def test_training_progress_is_shown(executed: Executed) -> None:
    text = executed.printed("phrasebook-train")
    assert text.startswith("$ python train.py --config configs/tiny.toml --workdir ")
    assert text.index("step 10/20  loss") < text.index("validation at step 20") < text.index("20 of 20")
    text = executed.printed("second-train")
    assert text.index("kept 300 of 300 pairs") < text.index("validation at step 5") < text.index("10 of 10")


@pytest.mark.slow
def test_running_a_training_cell_again_reports_that_the_run_is_finished(executed: Executed) -> None:
    first, again = (executed.printed(cell).splitlines() for cell in ("phrasebook-train", "last-0"))
    assert again[0] == first[0]
    assert again[-1].startswith(f"{executed.runs}/tiny: finished: 20 of 20 steps")
    assert not [line for line in again if line.startswith("step ")]


@pytest.mark.slow
def test_scores_are_shown(executed: Executed) -> None:
    text = executed.printed("phrasebook-bleu")
    assert re.findall(r"│ sentences +│ ([\d,]+) ", text) == ["1,000", "864"]
    assert len(re.findall(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)) == 2
    assert re.search(r"contrast pairs right +│ \d+ of 432 ", text)
    text = executed.printed("second-bleu")
    assert re.search(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)
    assert re.search(rf"│ sentences +│ {len(TED_SPLITS['test'])} ", text)


@pytest.mark.slow
def test_pictures_are_shown(executed: Executed) -> None:
    assert {name for name, cell in executed.cells.items() if pictures(cell)} == set(PICTURES)
    for name, file in PICTURES.items():
        (picture,) = pictures(executed.cells[name])
        assert b64decode(picture) == (executed.runs / file).read_bytes()
        assert b64decode(picture).startswith(b"\x89PNG")


@pytest.mark.slow
def test_translations_are_those_of_the_command(executed: Executed, run) -> None:
    for cells, workdir, sentence in (
        (("phrasebook-translate", "phrasebook-attention"), "tiny", PARAMETERS["SENTENCE"]),
        (("second-translate",), "ted_pt_en", PARAMETERS["SECOND_SENTENCE"]),
    ):
        result = run("translate.py", "--workdir", executed.runs / workdir, input=sentence)
        assert result.returncode == 0, result.stderr
        (translation,) = result.stdout.splitlines()
        for cell in cells:
            first, *others = executed.printed(cell).splitlines()
            assert first == sentence
            assert translation in others
    assert "what each word looked at" in executed.printed("phrasebook-attention")


# The helper functions defined in the cells.


@pytest.fixture
def helpers() -> dict[str, Any]:
    """What the cells for commands and installation define, without installing anything."""
    namespace: dict[str, Any] = {"REPOSITORY": str(ROOT), "Path": Path}
    exec(source("commands"), namespace)
    module = ast.parse(source("install"))
    module.body = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    exec(compile(module, "install", "exec"), namespace)
    return namespace


def write_kernel(folder: Path, command: list[str]) -> Path:
    """Writes a program that stands in for the kernel and runs a command as a cell does; returns its path.

    A separate process, since this one has JAX's threads and must not fork. Like a kernel, it handles SIGINT, which a
    shell makes background jobs ignore.
    """
    program = folder / "kernel.py"
    handler = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    setting = f"from pathlib import Path\nREPOSITORY = {str(ROOT)!r}\n{handler}"
    program.write_text(f"{setting}{source('commands')}\nrun(*{command})\n", encoding="utf-8")
    return program


def test_a_failed_command_stops_the_cell(run, tmp_path: Path) -> None:
    message = f"error: {tmp_path}/none has no config.toml yet: give one with --config, for example configs/tiny.toml"
    result = run(write_kernel(tmp_path, ["python", "train.py", "--workdir", f"{tmp_path}/none"]))
    assert result.stdout == f"$ python train.py --workdir {tmp_path}/none\n{message}\n"
    assert result.stderr.endswith(f"\nRuntimeError: the command ended with status 2: {message}\n")


# Stands in for a training run, which starts slowly: saves at the first signal, and ends at once at a second one.
SAVING = """
import contextlib
import sys
import time
from pathlib import Path

from host.errors import Interrupted
from host.interruption import interruption

interruption.install()
with contextlib.suppress(Interrupted), interruption.deferred():
    Path(sys.argv[1], "started").touch()
    while not interruption.signal_number:
        time.sleep(0.01)
    Path(sys.argv[1], "saved").write_text(str(interruption.signal_number))
    print("saved", flush=True)
"""


@dataclass
class RunningCell:
    """A cell with a command that saves its state when it is interrupted.

    Attributes:
      kernel: the process that stands in for the kernel.
      child: the command.
      folder: where the command saves.
    """

    kernel: subprocess.Popen[str]
    child: psutil.Process
    folder: Path

    @property
    def is_training(self) -> bool:
        return (self.folder / "metrics.jsonl").exists()

    def last_line(self) -> str:
        """Returns the last line that the interrupted command should print, after checking that it has saved."""
        if not self.is_training:
            assert int((self.folder / "saved").read_text()) in (signal.SIGINT, signal.SIGTERM)
            return "saved"
        newest = saved_steps(self.folder / "checkpoints")[-1]
        assert [line["step"] for line in metrics(self.folder) if "loss" in line] == list(range(1, newest + 1))
        return f"step {newest} is saved; run the same command again to continue"


@pytest.fixture(params=["stand-in", pytest.param("training", marks=pytest.mark.slow)])
def cell(request, toy: Path, tmp_path: Path) -> Iterator[RunningCell]:
    folder = tmp_path / "w"
    if request.param == "training":
        command = ["train.py", "--config", str(toy), "--workdir", str(folder), "--training.num-steps", "100000"]
    else:
        folder.mkdir()
        (tmp_path / "saving.py").write_text(SAVING)
        command = [str(tmp_path / "saving.py"), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    kernel = start_command(write_kernel(tmp_path, ["python", *command]), env=environment, start_new_session=True)
    wait_for(kernel, lambda: any((folder / name).exists() for name in ("started", "metrics.jsonl")))
    (child,) = psutil.Process(kernel.pid).children()
    yield RunningCell(kernel, child, folder)
    for process in (kernel, child):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_interrupting_a_cell_lets_the_command_save(cell: RunningCell) -> None:
    """Jupyter signals the whole process group of the kernel."""
    # Otherwise the command would get a second signal, which often merges with the first and goes unnoticed.
    assert os.getpgid(cell.child.pid) != cell.kernel.pid
    os.killpg(cell.kernel.pid, signal.SIGINT)
    out, err = cell.kernel.communicate(timeout=PROMPTLY)
    assert cell.kernel.returncode == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt\n")
    assert out.splitlines()[-1] == cell.last_line()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_command_saves_and_ends_if_the_kernel_is_killed(cell: RunningCell) -> None:
    os.killpg(cell.kernel.pid, signal.SIGKILL)
    cell.kernel.communicate(timeout=PROMPTLY)
    assert psutil.wait_procs([cell.child], timeout=PROMPTLY) == ([cell.child], [])
    assert cell.last_line()


@pytest.mark.parametrize(
    ("driver", "environment", "extra"),
    [
        ("echo 580.65.06", {}, "cuda"),
        ("echo 550.54.15", {}, "cuda12"),
        ("exit 9", {"COLAB_TPU_1VM": "1"}, "tpu"),
        ("echo 580.65.06", {"JAX_PLATFORMS": "cpu"}, None),
    ],
)
def test_the_extra_matches_the_machine(helpers, tmp_path: Path, monkeypatch, driver, environment, extra) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{driver}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert helpers["extra"]() == extra
    if extra:
        assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_placeholder_for_the_repository_is_refused(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"Path": Path}
    exec(source("parameters"), namespace)
    namespace |= {"repository": tmp_path / "none", "os": os}
    with pytest.raises(ValueError, match="REPOSITORY, in the first cell, is still a placeholder"):
        exec(source("install"), namespace)


# The stored notebook.


def test_stored_cells_are_valid() -> None:
    notebook = read_notebook()
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            compile(cell.source, cell.id, "exec")
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[:2] == ["markdown", "code"]
    assert notebook.cells[1].id == "parameters"
    assert notebook.metadata.accelerator == "TPU"


def test_stored_outputs_are_complete_and_free_of_local_paths() -> None:
    notebook = read_notebook()
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert [cell.execution_count for cell in cells.values()] == list(range(1, len(cells) + 1))
    assert {name for name, cell in cells.items() if not cell.outputs} == WITHOUT_OUTPUT
    assert not [output for cell in cells.values() for output in cell.outputs if output.output_type == "error"]
    assert "CpuDevice" in printed(cells["devices"])
    assert "on a CPU (two cores of an AMD EPYC)" in " ".join(notebook.cells[0].source.split())
    assert "2,200 of 2,200" in printed(cells["phrasebook-train"])
    assert "contrast pairs right" in printed(cells["phrasebook-bleu"])
    assert {name for name, cell in cells.items() if pictures(cell)} == {"phrasebook-curve", "phrasebook-attention"}
    assert {printed(cell) for name, cell in cells.items() if name.startswith("second")} == {
        "the second run is off: SECOND is None\n"
    }
    text = "".join(printed(cell) for cell in cells.values())
    paths = re.findall(r"(?<![\w.)/<])/\w[^\s:]*", text)
    assert paths
    assert not [path for path in paths if not path.startswith("/tmp/lingua-flax/")]
    assert "\x1b" not in text
