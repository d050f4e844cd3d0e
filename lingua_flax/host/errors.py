"""Exceptions that end a command early; any other exception is a bug and keeps its traceback."""

import errno
import os
import re

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """A mistake that the user can correct, found before anything is written: exit status 2."""


class RunError(Exception):
    """A failure during a run, such as three non-finite steps in a row or a full disk: exit status 1."""


class Interrupted(Exception):
    """Training stopped by a signal, with its state saved: exit status 128 + the signal number."""

    def __init__(self, signal_number: int, message: str = ""):
        super().__init__(message)
        self.signal_number = signal_number


def is_disk_full(error: BaseException | None) -> bool:
    """Returns whether a full disk, a quota or a file-size limit caused an error; some libraries only say so."""
    while error is not None:
        codes = [getattr(error, "errno", None), *map(int, re.findall(r"os_error_code='(\d+)'", str(error)))]
        if any(code in codes or os.strerror(code) in str(error) for code in _NO_SPACE):
            return True
        error = error.__cause__ or error.__context__
    return False
