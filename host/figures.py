"""Pictures on disk: drawn by matplotlib without a display, the same bytes for the same figure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from host.files import write_atomically

if TYPE_CHECKING:  # matplotlib takes half a second to import: only what draws does so
    from matplotlib.figure import Figure

DOTS_PER_INCH = 120


def save_figure(figure: Figure, path: Path) -> None:
    """Writes the figure as PNG, so that it is there whole or not at all."""
    content = io.BytesIO()
    # Without metadata, which would name the version of matplotlib.
    figure.savefig(content, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    write_atomically(path, content.getvalue())
