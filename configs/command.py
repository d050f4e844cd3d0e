"""What every command does around its work: logging on stderr, and an exit status for each way to end."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from configs.errors import EarlyEnd, Interrupted


class _StderrHandler(logging.StreamHandler):
    """Looks sys.stderr up at every line, since a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main(command: Callable[[Sequence[str]], None]) -> int:
    """Runs a command on the process's arguments and returns its exit status."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[_StderrHandler()])
    for noisy in ("absl", "jax", "orbax", "grain"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        command(sys.argv[1:])
    except EarlyEnd as end:
        print(end if isinstance(end, Interrupted) else f"error: {end}", file=sys.stderr)
        return end.exit_status
    except KeyboardInterrupt:  # before the command polls for signals
        return 130
    except BrokenPipeError:  # whoever read our output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(
            f"error: no space left ({error.filename or 'while writing'}); make some and run this again", file=sys.stderr
        )
        return 1
    return 0
