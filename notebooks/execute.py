"""Runs the cells of a notebook without a browser, and stores their outputs in it.

As a program (`make notebook`), it does so with colab_tpu.ipynb on the CPU. The run is in /tmp/lingua-flax, with the
phrasebook, so that the notebook contains no paths of the machine it was run on, and no text from a corpus that must not
be redistributed.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

COLAB = Path(__file__).with_name("colab_tpu.ipynb")
SCRATCH = Path("/tmp/lingua-flax")  # run and cache of this notebook; deleted at the end


class _CurrentInterpreterKernelManager(AsyncKernelManager):
    """Starts the kernel with the current interpreter, regardless of the kernels that the user has installed."""

    def __init__(self, **options: Any):
        super().__init__(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **options)


def read_notebook(path: Path) -> NotebookNode:
    """Reads a notebook."""
    return nbformat.read(path, as_version=4)


def execute(notebook: NotebookNode, folder: Path, environment: dict[str, str]) -> NotebookNode:
    """Runs all cells in a folder, with further environment variables, and returns the notebook with their outputs."""
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_manager_class=_CurrentInterpreterKernelManager,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    isolation = {"IPYTHONDIR": str(folder / "ipython")}  # ignores the user's IPython history and startup files
    return client.execute(env=os.environ | isolation | environment)


def store_outputs(path: Path, executed: NotebookNode) -> None:
    """Stores the texts and outputs of executed cells in the notebook at `path`, in which code stays as it is."""
    stored, number = read_notebook(path), 0
    cells = {cell.id: cell for cell in executed.cells}
    for cell in stored.cells:
        if cell.cell_type == "code":
            number += 1
            cell.outputs, cell.execution_count = cells[cell.id].outputs, number
        else:
            cell.source = cells[cell.id].source
    nbformat.write(stored, path)


def with_parameters(notebook: NotebookNode, parameters: Mapping[str, object]) -> NotebookNode:
    """Returns the notebook with a cell after the one named "parameters" that gives its variables other values."""
    (index,) = [index for index, cell in enumerate(notebook.cells) if cell.id == "parameters"]
    assignments = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    notebook.cells.insert(index + 1, new_code_cell(assignments, id="replaced"))
    return notebook


def main() -> None:
    """Runs the Colab notebook and stores its outputs."""
    if SCRATCH.exists():
        sys.exit(f"error: {SCRATCH} already exists; remove it first")
    SCRATCH.mkdir()
    parameters = {"REPOSITORY": str(COLAB.parent.parent), "FOLDER": str(SCRATCH), "ON_DRIVE": False}
    environment = {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(SCRATCH / "cache")}
    store_outputs(COLAB, execute(with_parameters(read_notebook(COLAB), parameters), SCRATCH, environment))
    shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    main()
