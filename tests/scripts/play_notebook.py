"""Runs all cells of a notebook, the argument, in IPython, and prints what they print; ends at the first error."""

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        print(f"--- {cell['id']}", flush=True)
        if not shell.run_cell("".join(cell["source"]), store_history=True).success:
            sys.exit(1)
