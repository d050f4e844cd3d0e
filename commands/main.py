"""The frame of every command: logging on stderr, and an exit status for every way in which it can end."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from host.errors import Interrupted, RunError, UserError, is_disk_full
from host.version import VERSION

# Errors that the user can correct, caused by a path.
_BAD_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR)


class _StderrHandler(logging.StreamHandler):
    """Writes every line to the current sys.stderr, which a progress bar replaces temporarily."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main(command: Callable[[Sequence[str]], None]) -> int:
    """Runs a command on the process's arguments and returns its exit status."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[_StderrHandler()])
    for noisy in ("absl", "jax", "orbax", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # its warnings are worth reading
    if "--version" in sys.argv[1:]:
        print(f"lingua-flax {VERSION}")
        return 0
    try:
        command(sys.argv[1:])
    except UserError as error:
        return _fail(2, str(error))
    except RunError as error:
        return _fail(1, str(error))
    except Interrupted as interrupted:
        if str(interrupted):
            print(interrupted, file=sys.stderr)
        return 128 + interrupted.signal_number
    except KeyboardInterrupt:  # at the prompt of translate.py
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        if is_disk_full(error):
            where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            return _fail(1, f"the disk is full{where}; what was saved before is intact: make space and run this again")
        if isinstance(error, OSError) and error.errno in _BAD_PATH:
            return _fail(2, f"{error.filename}: {error.strerror}")
        raise
    return 0


def _fail(status: int, message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status
