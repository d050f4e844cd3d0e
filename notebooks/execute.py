"""Runs the cells of colab_tpu.ipynb without a browser; as a program (`make notebook`), stores their outputs in it.

The stored outputs are from a clone of the last commit in /tmp/lingua-flax, on the CPU, with the phrasebook only. So the
notebook contains no paths of the machine it was run on, and no text from a corpus that must not be redistributed.
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
SCRATCH = Path("/tmp/lingua-flax")  # clone, runs and cache; deleted at the end


class _CurrentInterpreterKernelManager(AsyncKernelManager):
    """Starts the kernel with the current interpreter, regardless of the kernels that the user has installed."""

    def __init__(self, **options: Any):
        super().__init__(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **options)


def read_notebook() -> NotebookNode:
    """Reads the stored notebook."""
    return nbformat.read(NOTEBOOK, as_version=4)


def execute(
    parameters: Mapping[str, object], folder: Path, environment: dict[str, str], last_cells: Sequence[str] = ()
) -> NotebookNode:
    """Runs all cells of the stored notebook.

    Args:
      parameters: new values for variables of the cell "parameters", by name.
      folder: the working directory of the kernel.
      environment: additional environment variables of the kernel.
      last_cells: source code of cells to append.

    Returns:
      The notebook with its outputs. It also contains the appended cells, and a cell that sets the parameters.

    Raises:
      CellExecutionError: a cell failed.
    """
    notebook = read_notebook()
    (parameters_index,) = [index for index, cell in enumerate(notebook.cells) if cell.id == "parameters"]
    assignments = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    notebook.cells.insert(parameters_index + 1, new_code_cell(assignments, id="replaced"))
    notebook.cells += [new_code_cell(source, id=f"last-{number}") for number, source in enumerate(last_cells)]
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


def main() -> None:
    """Runs the notebook and stores its outputs."""
    if SCRATCH.exists():
        sys.exit(f"error: {SCRATCH} already exists; remove it first")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(SCRATCH / "repository")], check=True)
    parameters = {"REPOSITORY": str(SCRATCH / "repository"), "RUNS": str(SCRATCH / "runs"), "SECOND": None}
    stored = read_notebook()
    executed = execute(parameters, SCRATCH, {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(SCRATCH / "cache")})
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    code_cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code_cells, 1):
        cell.outputs, cell.execution_count = outputs[cell.id], number
    nbformat.write(stored, NOTEBOOK)
    shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    main()
