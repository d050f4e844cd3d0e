"""A command whose only work, named by its argument, is to send itself SIGTERM."""

import os
import signal
import sys
from collections.abc import Sequence

from lingua_flax.commands.main import exit_status
from lingua_flax.host.interruption import interruption


def deferred(_: Sequence[str]) -> None:
    with interruption.deferred():
        signal.raise_signal(signal.SIGTERM)
        os.write(2, b"saved\n")


def without_standard_error(_: Sequence[str]) -> None:
    os.close(2)
    signal.raise_signal(signal.SIGTERM)


interruption.install()
sys.exit(exit_status({"deferred": deferred, "without-standard-error": without_standard_error}[sys.argv[1]], []))
