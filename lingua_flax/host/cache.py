"""Location of the cache: prepared corpora and compiled programs, which can be recreated."""

import os
from pathlib import Path

from lingua_flax.host.errors import UserError


def cache_directory(configured: Path | None = None) -> Path:
    """Returns the configured folder, by default lingua-flax in $XDG_CACHE_HOME or ~/.cache.

    Raises UserError if the path depends on the user's home directory and there is none.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")  # ignored if relative, as the XDG specification requires
    path = configured or Path(base if os.path.isabs(base) else "~/.cache", "lingua-flax")
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: no home directory; choose a cache folder with --data.cache-directory") from error
