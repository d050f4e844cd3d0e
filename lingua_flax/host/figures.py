"""Saving matplotlib figures without a display; the same figure always gives the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from lingua_flax.host.files import write_atomically

if TYPE_CHECKING:  # importing matplotlib is slow, so only code that draws imports it
    from matplotlib.figure import Figure

DOTS_PER_INCH = 120
MAX_PIXELS = 2e8  # which take 800 MB while they are drawn; larger figures have fewer dots per inch
# By the ending of the file, what matplotlib writes by default: its version and the time.
FORMATS = {".png": ["Software"], ".svg": ["Creator", "Date"], ".pdf": ["Creator", "Producer", "CreationDate"]}


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of the path's ending, one of FORMATS, atomically."""
    import matplotlib

    content, ending = io.BytesIO(), path.suffix.lower()
    width, height = figure.get_size_inches()
    dpi = min(DOTS_PER_INCH, (MAX_PIXELS / (width * height)) ** 0.5)
    with matplotlib.rc_context({"svg.hashsalt": "lingua-flax"}):  # which is random by default
        figure.savefig(content, format=ending[1:], dpi=dpi, metadata=dict.fromkeys(FORMATS[ending]))
    write_atomically(path, content.getvalue())
