"""Locks that keep two processes from writing to the same place."""

import atexit
import logging
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from lingua_flax.host.errors import UserError

log = logging.getLogger(__name__)


def lock_until_exit(path: Path, locked: object, refusal: str) -> None:
    """Locks a file, which names this process, until this process ends, and then deletes it.

    The operating system holds the lock, so a killed process does not keep it, though its file remains. On a file system
    without locks, a warning is logged. The file's folder must exist.

    Raises UserError if the file belongs to another user or another process holds the lock; in the latter case the
    message is "LOCKED: PROCESS REFUSAL", where `refusal` says what that process does, and a remedy.
    """
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        try:
            holder = path.read_text(encoding="utf-8")
        except OSError:  # it has just ended
            holder = ""
        raise UserError(f"{locked}: {holder or 'another process'} {refusal}") from None
    except PermissionError as error:
        raise UserError(
            f"{path}: cannot be locked ({error.strerror}); it belongs to another user, who may be using {locked}"
        ) from error
    except OSError as error:
        log.warning("%s: cannot be locked (%s); make sure that only one process writes there", path, error.strerror)
        return

    # What is registered last is called first: the file is deleted while the lock is still held. Registering also keeps
    # the lock, whose file is closed when it is no longer referenced.
    atexit.register(lock.release)
    atexit.register(path.unlink, missing_ok=True)
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
