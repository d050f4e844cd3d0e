"""Locks that keep two processes from writing to the same place."""

import atexit
import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from lingua_flax.host.errors import UserError

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of file systems without locks
log = logging.getLogger(__name__)


def acquire(path: Path, *, blocking: bool) -> FileLock | None:
    """Returns the lock on a file, which the operating system releases when this process dies.

    Returns None, after a warning, on a file system without locks: a file that only stands for one would remain after a
    kill. Raises Timeout if another process holds it, unless `blocking`, and OSError if the file cannot be created.
    """
    lock = FileLock(path, blocking=blocking, fallback_to_soft=False)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("%s: cannot be locked (%s); make sure that only one process writes there", path, error.strerror)
        return None
    return lock


def lock_until_exit(path: Path, locked: object, refusal: str) -> Callable[[], None]:
    """Locks a file in an existing folder, which names this process, until this process ends, and then deletes it.

    Returns a function that unlocks it earlier. Raises UserError if the file belongs to another user or another process
    holds the lock; in the latter case the message is "LOCKED: PROCESS REFUSAL", where `refusal` says what that process
    does, and a remedy.
    """
    try:
        lock = acquire(path, blocking=False)
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
    if not lock:
        return lambda: None

    def unlock() -> None:
        atexit.unregister(unlock)
        path.unlink(missing_ok=True)  # while the lock is still held
        lock.release()

    atexit.register(unlock)  # also keeps the lock, whose file is closed when it is no longer referenced
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    return unlock
