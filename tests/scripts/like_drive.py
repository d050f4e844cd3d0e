"""As sitecustomize.py on PYTHONPATH, makes the file system as poor as Google Drive's: no locks, no links, and folders
that are renamed file by file.
"""

import errno
import fcntl
import os
import shutil
from typing import Any

rename = os.rename


def unsupported(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def rename_file_by_file(source: Any, target: Any, **options: Any) -> None:
    if not os.path.isdir(source):
        rename(source, target, **options)
        return
    os.makedirs(target, exist_ok=True)
    for entry in sorted(os.listdir(source)):
        rename_file_by_file(os.path.join(source, entry), os.path.join(target, entry))
    shutil.rmtree(source)


fcntl.flock = fcntl.lockf = os.link = os.symlink = unsupported
os.rename = os.replace = rename_file_by_file
