"""Saving matplotlib figures without a display; the same figure always gives the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from lingua_flax.host.files import write_atomically

if TYPE_CHECKING:  # importing matplotlib is slow, so only code that draws imports it
    from matplotlib.figure import Figure

DOTS_PER_INCH = 120


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG file, atomically."""
    content = io.BytesIO()
    # By default, the metadata contain the version of matplotlib.
    figure.savefig(content, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    write_atomically(path, content.getvalue())
