"""Runs the cells of colab_tpu.ipynb without a browser; as a program (`make notebook`) it stores their outputs.

What is stored is the run of a clone of the last commit in /tmp/lingua-flax, on the CPU, with the phrasebook alone: the
notebook then names no folder of the machine it was made on, and holds no line of a corpus that may not be passed on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

NOTEBOOK = Path(__file__).with_name("colab_tpu.ipynb")
ROOT = NOTEBOOK.parent.parent
PLACE = Path("/tmp/lingua-flax")


class _ThisPython(AsyncKernelManager):
    """Starts the kernel with this interpreter, whatever kernels the user has installed."""

    def __init__(self, **options: Any):
        super().__init__(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **options)


def read_notebook() -> NotebookNode:
    """The notebook as it is stored."""
    return nbformat.read(NOTEBOOK, as_version=4)


def execute(
    parameters: Mapping[str, object], folder: Path, environment: dict[str, str], last_cells: Sequence[str] = ()
) -> NotebookNode:
    """The notebook after all cells have run in the folder, its parameters replaced, other cells at its end.

    Raises:
      CellExecutionError: a cell failed.
    """
    notebook = read_notebook()
    (place,) = [index for index, cell in enumerate(notebook.cells) if cell.id == "parameters"]
    replaced = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    notebook.cells.insert(place + 1, new_code_cell(replaced, id="replaced"))
    notebook.cells += [new_code_cell(source, id=f"last-{number}") for number, source in enumerate(last_cells)]
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_manager_class=_ThisPython,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    own_settings = {"IPYTHONDIR": str(folder / "ipython")}  # and no history or startup files of the user
    return client.execute(env=os.environ | own_settings | environment)


def main() -> None:
    """Stores the outputs."""
    if PLACE.exists():
        sys.exit(f"error: {PLACE} is there already: remove it first")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(PLACE / "repository")], check=True)
    parameters = {"REPOSITORY": str(PLACE / "repository"), "RUNS": str(PLACE / "runs"), "SECOND": None}
    stored = read_notebook()
    executed = execute(parameters, PLACE, {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(PLACE / "cache")})
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    code_cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code_cells, 1):
        cell.outputs, cell.execution_count = outputs[cell.id], number
    nbformat.write(stored, NOTEBOOK)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
