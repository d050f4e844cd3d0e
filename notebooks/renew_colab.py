"""Runs the cells of colab_tpu.ipynb on the CPU and stores their outputs in it (`make notebook`).

The runs are in /tmp/lingua-flax, with the phrasebook only, so that the notebook contains no paths of the machine it was
run on, and no text from a corpus that must not be redistributed.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from notebooks.execute import execute, read_notebook, store_outputs

NOTEBOOK = Path(__file__).with_name("colab_tpu.ipynb")
ROOT = NOTEBOOK.parent.parent
SCRATCH = Path("/tmp/lingua-flax")  # runs and cache; deleted at the end


def with_parameters(notebook: NotebookNode, parameters: Mapping[str, object]) -> NotebookNode:
    """Returns the notebook with a cell after the one named "parameters" that gives its variables other values."""
    (index,) = [index for index, cell in enumerate(notebook.cells) if cell.id == "parameters"]
    assignments = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    notebook.cells.insert(index + 1, new_code_cell(assignments, id="replaced"))
    return notebook


def main() -> None:
    """Runs the notebook and stores its outputs."""
    if SCRATCH.exists():
        sys.exit(f"error: {SCRATCH} already exists; remove it first")
    SCRATCH.mkdir()
    parameters = {"REPOSITORY": str(ROOT), "RUNS": str(SCRATCH / "runs"), "SECOND": None}
    environment = {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(SCRATCH / "cache")}
    store_outputs(NOTEBOOK, execute(with_parameters(read_notebook(NOTEBOOK), parameters), SCRATCH, environment))
    shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    main()
