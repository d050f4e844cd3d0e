"""notebooks/colab_tpu.ipynb: its cells, run unchanged by a kernel on the CPU, and its stored outputs.

Three things differ from Colab: the runs are not on Drive, the archive of the TED talks is in another folder, and the
page is fetched instead of shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from lingua_flax.runs.checkpoint import saved_steps
from notebooks import colab
from notebooks.execute import COLAB, execute, read_notebook, with_parameters
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import PROMPTLY, ROOT
from tests.processes import metrics, start_command, wait_for
from tests.ted import TED_SPLITS, accepting, pack_ted

SCRIPTS = Path(__file__).parent / "scripts"
PICTURES = {
    "train": ["tiny/curves.png"],
    "translate": ["tiny/attention.png"],
    "second": ["ted_pt_en/curves.png", "ted_pt_en/attention.png"],
}
SMALL = (
    "--training.log-every 10 --training.tokens-per-batch 512 --optimizer.warmup-steps 5 "
    "--model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.embed-dim 16 "
    "--model.num-heads 2 --model.mlp-dim 32"
)
SENTENCES = ("The cat's friend saw the bank.", "um dois três")


@dataclass
class Executed:
    """The executed notebook, and the folder that contains everything it was given and wrote."""

    cells: dict[str, NotebookNode]
    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def printed(self, cell: str) -> str:
        return printed(self.cells[cell])


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def pictures(cell: NotebookNode) -> list[str]:
    return [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp("notebook")
    archive = pack_ted(folder / "archives" / "qi18naacl-dataset.tar.gz")
    stand_ins = folder / "python" / "google" / "colab"
    stand_ins.mkdir(parents=True)
    for name in ("drive", "output"):
        shutil.copy(SCRIPTS / f"colab_{name}.py", stand_ins / f"{name}.py")
    environment = {"JAX_PLATFORMS": "cpu", "PIP_NO_INDEX": "1"}
    environment |= accepting(archive, folder / "python", folder / "report")
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
    parameters = {
        "REPOSITORY": str(ROOT),
        "RUNS": str(folder / "runs"),
        "OPTIONS": f"{SMALL} --training.num-steps 20 --training.eval-every 20 --tokenizer.vocab-size 500",
        "SENTENCE": SENTENCES[0],
        "SECOND": "ted_pt_en",
        "SECOND_OPTIONS": f"{SMALL} --training.num-steps 10 --training.eval-every 5 --tokenizer.vocab-size 45 "
        f"--data.directory {archive.parent}",
        "SECOND_SENTENCE": SENTENCES[1],
    }
    notebook = with_parameters(read_notebook(COLAB), parameters)
    again = next(cell.source for cell in notebook.cells if cell.id == "train")
    mount = "from google.colab import drive\ndrive.mount(f'{RUNS}/drive')"
    imported = "import sys\nprint(sorted({'jax', 'tensorflow'} & set(sys.modules)))"
    for name, source in (("again", again), ("mount", mount), ("imported", imported)):
        notebook.cells.append(nbformat.v4.new_code_cell(source, id=name))
    notebook = execute(notebook, folder, environment)
    return Executed({cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}, folder)


@pytest.mark.slow
def test_every_cell_runs_without_errors(executed: Executed) -> None:
    for name, cell in executed.cells.items():
        assert cell.execution_count, name
        assert not [output for output in cell.outputs if output.output_type == "error"], name
        assert bool(cell.outputs) == (name not in ("parameters", "replaced", "source")), name
        assert "\x1b" not in printed(cell), name  # no colors or progress bars, which are for terminals


@pytest.mark.slow
def test_installed_packages_are_not_installed_again(executed: Executed) -> None:
    """The kernel's pip has no index to install anything from."""
    assert "already installed\n" in executed.printed("setup")
    assert "CpuDevice" in executed.printed("setup")


@pytest.mark.slow
def test_the_kernel_imports_neither_jax_nor_tensorflow(executed: Executed) -> None:
    assert executed.printed("imported") == "[]\n"
    started = (
        (executed.folder / "report").read_text().splitlines()
    )  # lingua-flax serve reports at its end, after the kernel's
    assert {Path(line.split()[0]).stem for line in started} - {"serve"} == {
        "__main__",
        "train",
        "evaluate",
        "translate",
    }
    assert {line.split()[1] for line in started} == {"False"}  # whether a command imported TensorFlow


@pytest.mark.slow
def test_training_progress_is_shown(executed: Executed) -> None:
    text = executed.printed("train")
    assert text.startswith("$ lingua-flax train --config tiny --workdir ")
    assert text.index("step 10/20  loss") < text.index("validation at step 20") < text.index("20 of 20")
    text = executed.printed("second")
    assert text.index("kept 300 of 300 pairs") < text.index("validation at step 5") < text.index("10 of 10")


@pytest.mark.slow
def test_running_a_training_cell_again_reports_that_the_run_is_finished(executed: Executed) -> None:
    first, again = (executed.printed(cell).splitlines() for cell in ("train", "again"))
    assert again[0] == first[0]
    assert again[-1].startswith(f"{executed.runs}/tiny: finished: 20 of 20 steps")
    assert not [line for line in again if line.startswith("step ")]


@pytest.mark.slow
def test_scores_are_shown(executed: Executed) -> None:
    text = executed.printed("bleu")
    assert re.findall(r"│ sentences +│ ([\d,]+) ", text) == ["1,000", "864"]
    assert len(re.findall(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)) == 2
    assert re.search(r"contrast pairs right +│ \d+ of 432 ", text)
    text = executed.printed("second")
    assert re.search(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)
    assert re.search(rf"│ sentences +│ {len(TED_SPLITS['test'])} ", text)


@pytest.mark.slow
def test_pictures_are_shown(executed: Executed) -> None:
    shown = {name: pictures(cell) for name, cell in executed.cells.items() if pictures(cell) and name != "again"}
    assert shown.keys() == PICTURES.keys()
    for name, files in PICTURES.items():
        assert list(map(b64decode, shown[name])) == [(executed.runs / file).read_bytes() for file in files]


@pytest.mark.slow
def test_page_is_shown(executed: Executed) -> None:
    assert executed.printed("page").splitlines()[-2:] == ["ready", "page: <title>Lingua Flax"]


@pytest.mark.slow
def test_translations_are_those_of_the_command(executed: Executed, run) -> None:
    for cell, workdir, sentence in zip(("translate", "second"), ("tiny", "ted_pt_en"), SENTENCES, strict=True):
        result = run("translate", "--workdir", executed.runs / workdir, input=sentence)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() in executed.printed(cell).splitlines()
        assert "what each word looked at" in executed.printed(cell)


@pytest.mark.slow
def test_report_has_versions_speed_and_scores(executed: Executed) -> None:
    text = executed.printed("report")
    assert re.search(r"Python 3\..* cores, CPU\njax 0\..*, lingua-flax \d.*, commit [0-9a-f]{40}\n", text)
    assert re.findall(r"step (\d+)/\d+  loss", text) == ["20", "10"]
    assert len(re.findall(r"computing on 1 x cpu", text)) == len(re.findall("step 1 started: ", text)) == 2
    assert len(re.findall(r"│ BLEU +│ \d", text)) == 3


# notebooks/colab.py.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected", "said"), [("0.9.0", "0.10.2", "is not supported"), ("0.10.0", "0.10.0", "keeping")]
)
def test_jax_of_the_machine_is_kept_if_it_is_supported(tmp_path: Path, given: str, expected: str, said: str) -> None:
    """As on Colab: a machine with another JAX and NumPy, into which the package is installed from a clone."""
    python = tmp_path / "machine" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
    preinstalled = (f"jax=={given}", f"jaxlib=={given}", "numpy==2.0.2", "ipython", "packaging")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *preinstalled], check=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    install = "import sys; sys.path.insert(0, 'clone'); from notebooks.colab import install; install(); install()"
    done = subprocess.run([python, "-c", install], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == "already installed"
    versions = "import jax, jaxlib, lingua_flax; print(jax.__version__, jaxlib.__version__, lingua_flax.__file__)"
    (tmp_path / "empty").mkdir()
    options = {"cwd": tmp_path / "empty", "env": environment, "text": True}
    jax, jaxlib, package = subprocess.check_output([python, "-c", versions], **options).split()
    assert (jax, jaxlib) == (expected, expected)
    assert Path(package).is_relative_to(tmp_path / "machine")
    train = ("train", "--config", "tiny", "--workdir", "w", "--training.num-steps", "2", "--training.eval-every", "0")
    subprocess.run([python.with_name("lingua-flax"), *train], check=True, **options)


# The kernel is a separate process, since this one has JAX's threads and must not fork.
RUN_CELL = SCRIPTS / "run_cell.py"


def test_a_failed_command_stops_the_cell(run, tmp_path: Path) -> None:
    message = f"error: {tmp_path}/none has no config.toml yet: give one with --config, for example --config tiny"
    result = run(RUN_CELL, f"python train.py --workdir {tmp_path}/none")
    assert result.stdout == f"$ python train.py --workdir {tmp_path}/none\n{message}\n"
    assert result.stderr.endswith(f"\nRuntimeError: the command ended with status 2: {message}\n")


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
        command = f"train.py --config {toy} --workdir {folder} --training.num-steps 100000"
    else:
        folder.mkdir()
        command = f"tests/scripts/save_when_interrupted.py {folder}"
    environment = os.environ | PROJECT_ON_PATH
    kernel = start_command(RUN_CELL, f"python {command}", env=environment, start_new_session=True)
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
def test_the_extra_matches_the_machine(tmp_path: Path, monkeypatch, driver, environment, extra) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{driver}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colab.accelerator() == extra
    if extra:
        assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


# The stored notebook.


def test_stored_cells_are_valid() -> None:
    notebook = read_notebook(COLAB)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            compile(cell.source, cell.id, "exec")
    assert [cell.id for cell in notebook.cells][:2] == ["intro", "parameters"]
    assert notebook.metadata.accelerator == "TPU"


def test_stored_outputs_are_complete_and_free_of_local_paths() -> None:
    notebook = read_notebook(COLAB)
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert [cell.execution_count for cell in cells.values()] == list(range(1, len(cells) + 1))
    assert {name for name, cell in cells.items() if not cell.outputs} == {"parameters", "source", "second"}
    assert not [output for cell in cells.values() for output in cell.outputs if output.output_type == "error"]
    assert "CpuDevice" in printed(cells["setup"])
    assert "stored outputs are from a CPU (2 cores of an AMD EPYC)" in " ".join(notebook.cells[0].source.split())
    assert "2,200 of 2,200" in printed(cells["train"])
    assert "contrast pairs right" in printed(cells["bleu"])
    assert {name for name, cell in cells.items() if pictures(cell)} == {"train", "translate"}
    text = "".join(printed(cell) for cell in cells.values())
    paths = re.findall(r"(?<![\w.)/<:])/\w[^\s:]*", text)
    assert paths
    assert not [path for path in paths if not path.startswith("/tmp/lingua-flax/")]
    assert "\x1b" not in text
