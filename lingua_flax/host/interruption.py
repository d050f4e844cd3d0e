"""SIGTERM and Ctrl-C: they end the process at once, or set a flag to poll while there is state to be saved.

The commands import this module before anything else, so importing it must stay fast.
"""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides the cursor


class Interruption:
    """Handler of both signals: they end the process with status 143 or 130, unless `deferred` delays the first one.

    The handler raises nothing: an exception raised inside another callback, such as the one that JAX registers with
    the garbage collector, would be printed and lost.
    """

    def __init__(self) -> None:
        self._deferring = False
        self.signal_number = 0  # of the signal that waits for `check`

    def install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._receive)
            # When Python exits, it restores the default handlers, and a signal would kill a process whose work is done.
            # The exit functions registered first are called last, so all others can still be interrupted.
            atexit.register(signal.signal, number, signal.SIG_IGN)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Delays the first signal until the next `check`, at the latest the one on leaving the context."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def check(self) -> None:
        """Raises Interrupted if a signal has been received."""
        if self.signal_number:
            from lingua_flax.host.errors import Interrupted

            raise Interrupted(self.signal_number, _stopped_by(self.signal_number))

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._deferring and not self.signal_number:
            self.signal_number = number
        else:
            _stop(number)


class BorrowedSignals(Interruption):
    """The same in a program of the user's, whose own handlers are replaced only for a first signal that is delayed.

    In a thread other than the main one, which signals do not reach, nothing is delayed.
    """

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        with contextlib.ExitStack() as self._borrowed:
            if threading.current_thread() is threading.main_thread():
                for number in SIGNALS:
                    self._borrowed.callback(signal.signal, number, signal.signal(number, self._receive))
            with super().deferred():
                yield

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.signal_number = number
        self._borrowed.close()


def _stop(number: int) -> None:
    """Ends the process at once, even if its standard error has been closed."""
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{cursor}{_stopped_by(number)}\n".encode())
    os._exit(128 + number)


def _stopped_by(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}"


interruption = Interruption()  # one per process, since a signal has only one handler
