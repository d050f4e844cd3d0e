"""What every command does around its work: logging on stderr, and an exit status for each way to end."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Sequence

from configs.errors import EarlyEnd, Interrupted


def main(command: Callable[[Sequence[str]], None]) -> int:
    """Runs a command on the process's arguments and returns its exit status."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    for noisy in ("absl", "jax", "orbax", "grain"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        command(sys.argv[1:])
    except EarlyEnd as end:
        print(end if isinstance(end, Interrupted) else f"error: {end}", file=sys.stderr)
        return end.exit_status
    except KeyboardInterrupt:  # before the command polls for signals
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(
            f"error: no space left ({error.filename or 'while writing'}); make some and run this again", file=sys.stderr
        )
        return 1
    return 0
