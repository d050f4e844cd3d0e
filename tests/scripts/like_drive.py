"""As sitecustomize.py on PYTHONPATH, makes a file system as poor as Google Drive's: no locks, no links, and folders
that are renamed file by file. It is that of the folder LIKE_DRIVE, by default of all folders.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from typing import Any

DRIVE = os.environ.get("LIKE_DRIVE", "/")
rename = os.rename


def is_on_drive(file: Any) -> bool:
    """Returns whether a path, or an open file or its number, is on the poor file system."""
    number = file if isinstance(file, int) else file.fileno() if hasattr(file, "fileno") else None
    return os.path.abspath(file if number is None else os.readlink(f"/proc/self/fd/{number}")).startswith(DRIVE)


def unsupported(function: Callable[..., Any]) -> Callable[..., Any]:
    is_link = function in (os.link, os.symlink)

    def replacement(file: Any, *arguments: Any, **options: Any) -> Any:
        if is_on_drive(file) or (is_link and is_on_drive(arguments[0])):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return function(file, *arguments, **options)

    return replacement


def rename_file_by_file(source: Any, target: Any, **options: Any) -> None:
    if not (os.path.isdir(source) and is_on_drive(source)):
        rename(source, target, **options)
        return
    os.makedirs(target, exist_ok=True)
    for entry in sorted(os.listdir(source)):
        rename_file_by_file(os.path.join(source, entry), os.path.join(target, entry))
    shutil.rmtree(source)


for module, name in ((fcntl, "flock"), (fcntl, "lockf"), (os, "link"), (os, "symlink")):
    setattr(module, name, unsupported(getattr(module, name)))
for name in ("rename", "replace"):
    setattr(os, name, rename_file_by_file)
