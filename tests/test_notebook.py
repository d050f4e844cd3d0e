"""notebooks/colab_tpu.ipynb: its cells, run unchanged by a kernel on the CPU, and its stored outputs.

Two things differ from Colab: Drive is a folder (see tests/test_played_colab.py, too), and the archive of the TED talks
is in another one.
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
from glob import glob
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
from tests.helpers.deno import ask
from tests.processes import metrics, start_command, wait_for
from tests.ted import TED_SPLITS, accepting, pack_ted

SCRIPTS = Path(__file__).parent / "scripts"
SMALL = (
    "--training.log-every 10 --training.tokens-per-batch 512 --optimizer.warmup-steps 5 "
    "--model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.embed-dim 16 "
    "--model.num-heads 2 --model.mlp-dim 32"
)
SENTENCE = "um dois três"


@dataclass
class Executed:
    """The executed notebook, and the folder that contains everything it was given and wrote."""

    cells: dict[str, NotebookNode]
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "lingua-flax-runs" / "ted_pt_en"

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
    for name in ("drive", "files"):
        shutil.copy(SCRIPTS / f"colab_{name}.py", stand_ins / f"{name}.py")
    environment = {"JAX_PLATFORMS": "cpu", "PIP_NO_INDEX": "1"}
    environment |= accepting(archive, folder / "python", folder / "report")
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
    parameters = {
        "REPOSITORY": str(ROOT),
        "FOLDER": str(folder),
        "CONFIG": "ted_pt_en",
        "OPTIONS": f"{SMALL} --training.num-steps 10 --training.eval-every 5 --tokenizer.vocab-size 45 "
        f"--data.directory {archive.parent}",
    }
    notebook = with_parameters(read_notebook(COLAB), parameters)
    imported = "import sys\nprint(sorted({'jax', 'tensorflow'} & set(sys.modules)))"
    planned = "print(Run(FOLDER, options=OPTIONS, on_drive=False).workdir)"
    cells = {
        "again": "network.train()",
        "own": f"network.translate({SENTENCE!r})",
        "planned": planned,
        "imported": imported,
    }
    notebook.cells += [nbformat.v4.new_code_cell(source, id=name) for name, source in cells.items()]
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


@pytest.mark.slow
def test_the_kernel_imports_neither_jax_nor_tensorflow(executed: Executed) -> None:
    assert executed.printed("imported") == "[]\n"
    started = (executed.folder / "report").read_text().splitlines()
    assert {Path(line.split()[0]).stem for line in started} == {"train", "evaluate", "translate", "export"}
    assert {line.split()[1] for line in started} == {"False"}  # whether a command imported TensorFlow


@pytest.mark.slow
def test_training_progress_is_shown(executed: Executed) -> None:
    text = executed.printed("train")
    assert text.startswith("$ lingua-flax train --config ted_pt_en ")
    assert text.index("kept 300 of 300 pairs") < text.index("validation at step 5") < text.index("10 of 10")


@pytest.mark.slow
def test_running_a_training_cell_again_reports_that_the_run_is_finished(executed: Executed) -> None:
    first, again = (executed.printed(cell).splitlines() for cell in ("train", "again"))
    assert again[0] == first[0]
    assert again[-1].startswith(f"{executed.run}: finished: 10 of 10 steps")
    assert not [line for line in again if line.startswith("step ")]


@pytest.mark.slow
def test_scores_are_shown(executed: Executed) -> None:
    text = executed.printed("bleu")
    assert re.search(r"│ BLEU +│ \d+\.\d\d +\(95%: ", text)
    assert re.search(rf"│ sentences +│ {len(TED_SPLITS['test'])} ", text)


@pytest.mark.slow
def test_pictures_are_shown(executed: Executed) -> None:
    shown = {name: pictures(cell) for name, cell in executed.cells.items() if pictures(cell)}
    assert shown.keys() == {"train", "again", "translate", "own"}
    for name, file in {"train": "curves.png", "own": "attention.png"}.items():
        assert list(map(b64decode, shown[name])) == [(executed.run / file).read_bytes()]


@pytest.mark.slow
def test_a_sentence_of_ones_own_or_an_example_is_translated(executed: Executed, run) -> None:
    for cell, sentence in (("translate", colab.PHRASEBOOK), ("own", SENTENCE)):
        result = run("translate", "--workdir", executed.run, input=sentence)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() in executed.printed(cell).splitlines()
        assert "what each word looked at" in executed.printed(cell)


@pytest.mark.slow
def test_page_is_downloaded(executed: Executed) -> None:
    page = executed.folder / "translator.html"
    assert executed.printed("page").splitlines()[-1] == f"downloading {page}"
    (answer,) = ask(page.read_text(encoding="utf-8"), page, [{"q": SENTENCE, "beam": True}])
    assert "answer" in answer


@pytest.mark.slow
def test_a_cpu_gets_a_short_form(executed: Executed) -> None:
    assert executed.printed("planned").splitlines()[-1] == f"{executed.folder}/lingua-flax-runs/tiny-short"


# notebooks/colab.py.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected", "said"), [("0.7.1", "0.10.2", "replaced JAX 0.7.1"), ("0.8.0", "0.8.0", "kept JAX 0.8.0")]
)
def test_jax_of_the_machine_is_kept_if_it_is_supported(tmp_path: Path, given: str, expected: str, said: str) -> None:
    """As on Colab: a machine with another JAX, Flax and NumPy, into which the package is installed from a clone."""
    python = tmp_path / "machine" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
    preinstalled = (f"jax=={given}", f"jaxlib=={given}", "flax==0.11.2", "numpy==2.0.2", "ipython", "packaging")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *preinstalled], check=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    install = "import sys; sys.path.insert(0, 'clone'); from notebooks.colab import install; install(); install()"
    done = subprocess.run([python, "-c", install], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"\n{said}" in done.stdout  # pip may have warned before
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
    ("devices", "environment", "extra"),
    [
        (["nvidia0", "nvidiactl"], {}, "cuda12"),
        (["nvidiactl"], {"COLAB_TPU_1VM": "1"}, "tpu"),
        (["vfio/0"], {}, "tpu"),
        (["accel0"], {}, "tpu"),
        (["nvidia0"], {"JAX_PLATFORMS": "cpu"}, None),
        ([], {}, None),
    ],
)
def test_the_extra_matches_the_machine(tmp_path: Path, monkeypatch, devices, environment, extra) -> None:
    for device in devices:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    monkeypatch.setattr(colab, "glob", lambda pattern: glob(pattern.replace("/dev", str(tmp_path))))
    for name in ("JAX_PLATFORMS", "COLAB_TPU_1VM"):
        monkeypatch.delenv(name, raising=False)
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
    assert {name for name, cell in cells.items() if not cell.outputs} == {"parameters", "source"}
    assert not [output for cell in cells.values() for output in cell.outputs if output.output_type == "error"]
    assert "The outputs stored here are those of a CPU" in " ".join(notebook.cells[0].source.split())
    assert "550 of 550" in printed(cells["train"])
    assert "translator.html" in str(cells["page"].outputs)
    assert {name for name, cell in cells.items() if pictures(cell)} == {"train", "translate"}
    text = "".join(printed(cell) for cell in cells.values())
    paths = re.findall(r"(?<![\w.)/<:])/\w[^\s:]*", text)
    assert paths
    assert not [path for path in paths if not path.startswith("/tmp/lingua-flax/")]
    assert "\x1b" not in text
