"""notebooks/colab_tpu.ipynb: every cell as it stands, run by a kernel on the CPU, and the outputs that are stored.

Two things are not as on Colab: the mount of Drive is a folder, and the archive of the TED talks lies in another one.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import sys
import tomllib
from base64 import b64decode
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
    """The notebook after its run, and the folders that it was given."""

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
    more = [source("phrasebook-train"), "print(sorted({'jax', 'tensorflow'} & set(sys.modules)))"]
    notebook = execute(parameters, folder, environment, more)
    return Executed({cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}, folder)


@pytest.mark.slow
def test_every_cell_ran(executed: Executed) -> None:
    for name, cell in executed.cells.items():
        assert cell.execution_count, name
        assert not [output for output in cell.outputs if output.output_type == "error"], name
        assert bool(cell.outputs) == (name not in {*WITHOUT_OUTPUT, "replaced"}), name
        assert "\x1b" not in printed(cell), name  # no colours or progress bars, which are for terminals


@pytest.mark.slow
def test_the_runs_are_on_the_drive(executed: Executed) -> None:
    assert executed.printed("drive") == f"Mounted at {executed.folder}/drive\nthe runs are in {executed.runs}\n"
    steps = {path.name: [line["step"] for line in metrics(path) if "loss" in line] for path in executed.runs.iterdir()}
    assert steps == {"tiny": list(range(1, 21)), "ted_pt_en": list(range(1, 11))}
    assert not (executed.folder / "lingua-flax-runs").exists()


@pytest.mark.slow
def test_what_is_there_already_is_not_installed(executed: Executed) -> None:
    """The kernel's pip has no index to take anything from."""
    command, last = executed.printed("install").splitlines()
    assert command.startswith("$ python -m pip install --quiet")
    assert "'jax>=" in command
    assert last == "installed for the CPU"


@pytest.mark.slow
def test_the_devices_are_asked_of_another_process(executed: Executed) -> None:
    assert "CpuDevice" in executed.printed("devices")
    assert executed.printed("last-1") == "[]\n"  # neither JAX nor TensorFlow is in the kernel
    started = (executed.folder / "report").read_text().splitlines()
    assert {line.split()[0] for line in started} == {"train.py", "evaluate.py", "translate.py"}
    assert {line.split()[1] for line in started} == {"False"}  # nor TensorFlow in a command


@pytest.mark.slow
def test_training_is_shown_as_it_goes(executed: Executed) -> None:
    text = executed.printed("phrasebook-train")
    assert text.startswith("$ python train.py --config configs/tiny.toml --workdir ")
    assert text.index("step 10/20  loss") < text.index("validation at step 20") < text.index("20 of 20")
    text = executed.printed("second-train")
    assert text.index("kept 300 of 300 pairs") < text.index("validation at step 5") < text.index("10 of 10")


@pytest.mark.slow
def test_the_same_cell_again_says_that_the_run_is_finished(executed: Executed) -> None:
    first, again = (executed.printed(cell).splitlines() for cell in ("phrasebook-train", "last-0"))
    assert again[0] == first[0]
    assert again[-1].startswith(f"{executed.runs}/tiny: finished: 20 of 20 steps")
    assert not [line for line in again if line.startswith("step ")]


@pytest.mark.slow
def test_scores(executed: Executed) -> None:
    text = executed.printed("phrasebook-bleu")
    assert re.findall(r"│ sentences +│ ([\d,]+) ", text) == ["1,000", "864"]
    assert len(re.findall(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)) == 2
    assert re.search(r"contrast pairs right +│ \d+ of 432 ", text)
    text = executed.printed("second-bleu")
    assert re.search(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)
    assert re.search(rf"│ sentences +│ {len(TED_SPLITS['test'])} ", text)


@pytest.mark.slow
def test_pictures(executed: Executed) -> None:
    assert {name for name, cell in executed.cells.items() if pictures(cell)} == set(PICTURES)
    for name, file in PICTURES.items():
        (picture,) = pictures(executed.cells[name])
        assert b64decode(picture) == (executed.runs / file).read_bytes()
        assert b64decode(picture).startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_readers_sentences(executed: Executed, run) -> None:
    """What translate.py answers to the same text."""
    for cells, workdir, sentence in (
        (("phrasebook-translate", "phrasebook-attention"), "tiny", PARAMETERS["SENTENCE"]),
        (("second-translate",), "ted_pt_en", PARAMETERS["SECOND_SENTENCE"]),
    ):
        done = run("translate.py", "--workdir", executed.runs / workdir, input=sentence)
        assert done.returncode == 0, done.stderr
        (translation,) = done.stdout.splitlines()
        for cell in cells:
            first, *others = executed.printed(cell).splitlines()
            assert first == sentence
            assert translation in others
    assert "what each word looked at" in executed.printed("phrasebook-attention")


# The helpers of its cells.


@pytest.fixture
def helpers() -> dict[str, Any]:
    """What the cells with commands and installation define, without installing."""
    found: dict[str, Any] = {"REPOSITORY": str(ROOT), "Path": Path}
    exec(source("commands"), found)
    module = ast.parse(source("install"))
    module.body = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    exec(compile(module, "install", "exec"), found)
    return found


def kernel(folder: Path, words: list[str]) -> Path:
    """A program that stands in for the kernel: it runs a command as a cell does. This process has JAX's threads, and
    must not fork. As a kernel it takes interrupts, which a shell has its background jobs ignore."""
    program = folder / "kernel.py"
    interrupts = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    setting = f"from pathlib import Path\nREPOSITORY = {str(ROOT)!r}\n{interrupts}"
    program.write_text(f"{setting}{source('commands')}\nrun(*{words})\n", encoding="utf-8")
    return program


def test_a_command_that_fails_stops_the_cell(run, tmp_path: Path) -> None:
    message = f"error: {tmp_path}/none has no config.toml yet: give one with --config, for example configs/tiny.toml"
    done = run(kernel(tmp_path, ["python", "train.py", "--workdir", f"{tmp_path}/none"]))
    assert done.stdout == f"$ python train.py --workdir {tmp_path}/none\n{message}\n"
    assert done.stderr.endswith(f"\nRuntimeError: the command ended with status 2: {message}\n")


@pytest.fixture
def training(toy: Path, tmp_path: Path):
    """A stand-in for the kernel, the long training that it runs, once it has begun, and the workdir."""
    workdir = tmp_path / "w"
    words = ["python", "train.py", "--config", str(toy), "--workdir", str(workdir), "--training.num-steps", "100000"]
    process = start_command(kernel(tmp_path, words), start_new_session=True)
    wait_for(process, (workdir / "metrics.jsonl").exists)
    (child,) = psutil.Process(process.pid).children()
    yield process, child, workdir
    for left in (process, child):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


def saved_to_the_last_step(workdir: Path) -> int:
    """The step of the newest checkpoint, which no step is ahead of."""
    (*_, newest), steps = saved_steps(workdir / "checkpoints"), [line for line in metrics(workdir) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, newest + 1))
    return newest


def test_interrupting_a_cell_lets_the_training_save(training) -> None:
    """Jupyter signals the whole process group of the kernel."""
    process, child, workdir = training
    assert os.getpgid(child.pid) != process.pid  # or it would get a second signal, of which two often become one
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PROMPTLY)
    assert process.returncode == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt\n")
    step = saved_to_the_last_step(workdir)
    assert out.splitlines()[-1] == f"step {step} is saved; run the same command again to continue"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_a_training_does_not_outlive_a_kernel_that_is_killed(training) -> None:
    process, child, workdir = training
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PROMPTLY)
    assert psutil.wait_procs([child], timeout=PROMPTLY) == ([child], [])
    assert saved_to_the_last_step(workdir)


@pytest.mark.parametrize(
    ("driver", "environment", "extra"),
    [
        ("echo 580.65.06", {}, "cuda"),
        ("echo 550.54.15", {}, "cuda12"),
        ("exit 9", {"COLAB_TPU_1VM": "1"}, "tpu"),
        ("echo 580.65.06", {"JAX_PLATFORMS": "cpu"}, None),
    ],
)
def test_the_extra_is_that_of_the_machine(helpers, tmp_path: Path, monkeypatch, driver, environment, extra) -> None:
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


def test_the_repository_has_to_be_named(tmp_path: Path) -> None:
    found: dict[str, Any] = {"Path": Path}
    exec(source("parameters"), found)
    names = found | {"repository": tmp_path / "none", "os": os}
    with pytest.raises(ValueError, match="REPOSITORY, in the first cell, is still a placeholder"):
        exec(source("install"), names)


# As it is stored.


def test_stored_cells() -> None:
    notebook = read_notebook()
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            compile(cell.source, cell.id, "exec")
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[:2] == ["markdown", "code"]
    assert notebook.cells[1].id == "parameters"
    assert notebook.metadata.accelerator == "TPU"


def test_stored_outputs() -> None:
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
