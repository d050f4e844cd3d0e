"""The ways in which a command ends early; anything else is a bug and keeps its traceback."""

from __future__ import annotations

import errno
import os
import re

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Something the user can mend, found before anything was written: exit status 2."""


class RunError(Exception):
    """A run that failed later, such as by three non-finite steps in a row or a full disk: exit status 1."""


class Interrupted(Exception):
    """Training stopped where a signal asked it to, with its state saved: exit status 128 + the signal's number."""

    def __init__(self, signal_number: int, message: str = ""):
        super().__init__(message)
        self.signal_number = signal_number


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk, quota or file-size limit is behind an error: some libraries say so only in their text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        if any(os.strerror(code) in str(error) for code in _NO_SPACE):
            return True
        if (found := re.search(r"os_error_code='(\d+)'", str(error))) and int(found[1]) in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False
