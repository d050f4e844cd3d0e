"""Where this program keeps what it can make again: prepared corpora and compiled programs."""

from __future__ import annotations

import os
from pathlib import Path

from host.errors import UserError


def cache_directory(configured: Path | None = None) -> Path:
    """The folder configured, or lingua-flax in the user's cache directory ($XDG_CACHE_HOME or ~/.cache).

    Raises:
      UserError: none is configured, and the user has no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")  # relative paths are to be ignored, says the XDG specification
    path = configured or Path(base if os.path.isabs(base) else "~/.cache", "lingua-flax")
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: no home directory; choose a cache folder with --data.cache-directory") from error
