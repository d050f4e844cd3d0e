"""Translations that are kept in the workdir of the run that made them, so that they are made only once."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lingua_flax.data.text_files import encode_lines, read_lines
from lingua_flax.host.digests import json_digest
from lingua_flax.host.files import new_file, why_not_writable
from lingua_flax.host.version import VERSION

FOLDER = "translations"
log = logging.getLogger(__name__)


def keep(workdir: Path, depends_on: Any, num_lines: int, translate: Callable[[], list[str]]) -> list[str]:
    """Returns translations of `num_lines` lines: those that are kept in the workdir, or else new ones.

    The name of their file is a digest of all that they depend on, as JSON. They are not kept in a read-only workdir.
    """
    path = workdir / FOLDER / f"{json_digest([VERSION, depends_on])}.txt"
    if path.exists() and len(kept := list(read_lines(path))) == num_lines:  # it may have been edited
        return kept
    translations = translate()
    if reason := why_not_writable(path.parent if path.parent.exists() else workdir):
        log.info("%s: its translations are not kept (%s)", workdir, reason)
    else:
        path.parent.mkdir(exist_ok=True)
        with new_file(path) as file:
            file.write(encode_lines(translations))
    return translations
