"""SIGTERM and Ctrl-C: the end of the process at once, or a flag to poll while there is state to save first.

The commands import this module before anything else, so it must stay quick to import.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


class Interruption:
    """Both signals end the process with status 143 or 130; within `deferred` the first waits for the next `check`.

    The handler raises nothing: an exception that comes up inside another callback, such as the garbage collector's
    of JAX, is printed and lost.
    """

    def __init__(self) -> None:
        self._deferring = False
        self.signal_number = 0  # that of the signal that waits for `check`, 0 for none

    def install(self) -> None:
        """Takes over both signals for the rest of the process."""
        for number in SIGNALS:
            signal.signal(number, self._receive)
        # At the very end Python restores the default handlers, and a signal would kill a process whose work is done.
        # The exit function registered first is called last: whatever else has to be shut down can be interrupted.
        atexit.register(_ignore_signals)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A signal waits for the next `check`, at the latest the one here at the end; a second one does not wait."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def check(self) -> None:
        """Raises Interrupted once a signal has come."""
        if self.signal_number:
            from host.errors import Interrupted

            raise Interrupted(self.signal_number, _stopped_by(self.signal_number))

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._deferring and not self.signal_number:
            self.signal_number = number
        else:
            _stop(number)


def _stop(number: int) -> None:
    """Ends the process at once, also where nobody reads its standard error any more."""
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{cursor}{_stopped_by(number)}\n".encode())
    os._exit(128 + number)


def _stopped_by(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}"


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


interruption = Interruption()  # one for the process: a signal has only one handler
