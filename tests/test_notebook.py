"""notebooks/colab_tpu.ipynb: its cells, run unchanged by a kernel on the CPU, and its stored outputs.

On Colab, Drive is not a folder; see tests/test_played_colab.py, too.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from notebooks import colab
from notebooks.execute import COLAB, execute, read_notebook, with_parameters
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import PROMPTLY, ROOT
from tests.helpers.commands import SMALL_NETWORK
from tests.helpers.deno import ask
from tests.processes import start_command, wait_for

SCRIPTS = Path(__file__).parent / "scripts"
OPTIONS = (
    f"{SMALL_NETWORK} --training.log-every 10 --training.tokens-per-batch 512 --optimizer.warmup-steps 5 "
    "--training.num-steps 10 --training.eval-every 5 --tokenizer.vocab-size 500"
)
SENTENCE = "The cat saw the bank."


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def pictures(cell: NotebookNode) -> list[bytes]:
    return [b64decode(output.data["image/png"]) for output in cell.outputs if "image/png" in output.get("data", {})]


@pytest.mark.slow
def test_the_notebook_runs_as_on_colab(run, tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS / "colab", tmp_path / "python" / "google" / "colab")
    environment = {"JAX_PLATFORMS": "cpu", "PIP_NO_INDEX": "1", "PYTHONPATH": str(tmp_path / "python")}
    parameters = {"REPOSITORY": str(ROOT), "FOLDER": str(tmp_path), "OPTIONS": OPTIONS}
    notebook = with_parameters(read_notebook(COLAB), parameters)
    added = {
        "again": "network.train()",
        "own": f"network.translate({SENTENCE!r})",
        "imported": "import sys\nprint(sorted({'jax', 'tensorflow'} & set(sys.modules)))",
    }
    notebook.cells += [nbformat.v4.new_code_cell(source, id=name) for name, source in added.items()]
    executed = execute(notebook, tmp_path, environment)
    cells = {cell.id: cell for cell in executed.cells if cell.cell_type == "code"}
    texts = {name: printed(cell) for name, cell in cells.items()}
    for name, cell in cells.items():
        assert cell.execution_count, name
        assert not [output for output in cell.outputs if output.output_type == "error"], name
        assert bool(cell.outputs) == (name not in ("parameters", "replaced", "source")), name
        assert "\x1b" not in texts[name], name  # no colors or progress bars, which are for terminals

    workdir = tmp_path / "lingua-flax-runs" / "tiny-short"  # a CPU gets a short form
    assert "already installed\n" in texts["setup"]  # the kernel's pip has no index to install anything from
    assert texts["train"].startswith("$ lingua-flax train --config tiny ")
    shown = ("kept ", "validation at step 5", "10 of 10")
    assert sorted(shown, key=texts["train"].index) == list(shown)
    assert texts["again"].splitlines()[-1].startswith(f"{workdir}: finished: 10 of 10 steps")
    assert "\nstep " not in texts["again"]
    assert re.search(r"│ BLEU +│ \d+\.\d\d +\(95%: ", texts["bleu"])
    for name, sentence in (("translate", colab.PHRASEBOOK), ("own", SENTENCE)):
        assert run("translate", "--workdir", workdir, input=sentence).stdout.strip() in texts[name].splitlines()
    assert {name for name, cell in cells.items() if pictures(cell)} == {"train", "again", "translate", "own"}
    assert pictures(cells["train"]) == [(workdir / "curves.png").read_bytes()]
    assert pictures(cells["own"]) == [(workdir / "attention.png").read_bytes()]
    page = tmp_path / "translator.html"
    assert texts["page"].splitlines()[-1] == f"downloading {page}"
    (answer,) = ask(page.read_text(encoding="utf-8"), page, [{"q": SENTENCE, "beam": True}])
    assert "answer" in answer
    assert texts["imported"] == "[]\n"


# notebooks/colab.py.


# The kernel is a separate process, since this one has JAX's threads and must not fork.
RUN_CELL = SCRIPTS / "run_cell.py"


def test_a_failed_command_stops_the_cell(run, tmp_path: Path) -> None:
    message = f"error: {tmp_path}/none has no config.toml yet: give one with --config, for example --config tiny"
    result = run(RUN_CELL, f"python train.py --workdir {tmp_path}/none")
    assert result.stdout == f"$ python train.py --workdir {tmp_path}/none\n{message}\n"
    assert result.stderr.endswith(f"\nRuntimeError: the command ended with status 2: {message}\n")


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Returns the kernel of a cell, and a command that it runs and that saves its state when it is interrupted."""
    command = f"python tests/scripts/save_when_interrupted.py {tmp_path}"
    kernel = start_command(RUN_CELL, command, env=os.environ | PROJECT_ON_PATH, start_new_session=True)
    wait_for(kernel, (tmp_path / "started").exists)
    (child,) = psutil.Process(kernel.pid).children()
    yield kernel, child
    for process in (kernel, child):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_interrupting_a_cell_lets_the_command_save(cell, tmp_path: Path) -> None:
    """Jupyter signals the whole process group of the kernel."""
    kernel, command = cell
    # Otherwise the command would get a second signal, which often merges with the first and goes unnoticed.
    assert os.getpgid(command.pid) != kernel.pid
    os.killpg(kernel.pid, signal.SIGINT)
    out, err = kernel.communicate(timeout=PROMPTLY)
    assert kernel.returncode == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt\n")
    assert out.splitlines()[-1] == "saved"
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGINT))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_command_saves_and_ends_if_the_kernel_is_killed(cell, tmp_path: Path) -> None:
    kernel, command = cell
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.communicate(timeout=PROMPTLY)
    assert psutil.wait_procs([command], timeout=PROMPTLY) == ([command], [])
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("device", "environment", "extra"),
    [
        ("/dev/nvidia0", {}, "cuda12"),
        ("/dev/nvidiactl", {"COLAB_TPU_1VM": "1"}, "tpu"),
        ("/dev/vfio/0", {}, "tpu"),
        ("/dev/accel0", {}, "tpu"),
        ("/dev/nvidia0", {"JAX_PLATFORMS": "cpu"}, None),
    ],
)
def test_the_extra_matches_the_machine(monkeypatch, device, environment, extra) -> None:
    monkeypatch.setattr(colab, "glob", lambda pattern: fnmatch.filter([device], pattern))
    for name in ("JAX_PLATFORMS", "COLAB_TPU_1VM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colab.accelerator() == extra
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra is None or extra in extras


def test_stored_notebook_is_valid_and_its_outputs_are_complete_and_free_of_local_paths() -> None:
    notebook = read_notebook(COLAB)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells][:2] == ["intro", "parameters"]
    assert notebook.metadata.accelerator == "TPU"
    assert "The outputs stored here are those of a CPU" in " ".join(notebook.cells[0].source.split())
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    for name, cell in cells.items():
        compile(cell.source, name, "exec")
    assert [cell.execution_count for cell in cells.values()] == list(range(1, len(cells) + 1))
    assert {name for name, cell in cells.items() if not cell.outputs} == {"parameters", "source"}
    assert not [output for cell in cells.values() for output in cell.outputs if output.output_type == "error"]
    assert "550 of 550" in printed(cells["train"])
    assert "translator.html" in str(cells["page"].outputs)
    assert {name for name, cell in cells.items() if pictures(cell)} == {"train", "translate"}
    text = "".join(printed(cell) for cell in cells.values())
    paths = re.findall(r"(?<![\w.)/<:])/\w[^\s:]*", text)
    assert paths
    assert not [path for path in paths if not path.startswith("/tmp/lingua-flax/")]
    assert "\x1b" not in text
