"""SIGTERM and Ctrl-C: the end of the process at once, or a flag to poll while there is state to save first."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from configs.errors import Interrupted

_SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


class Interruption:
    """Both signals end the process with status 143 or 130; within `deferred` the first waits for a call of `check`.

    The handler raises nothing: an exception that comes up inside another callback, such as the garbage collector's
    of JAX, is printed and lost.
    """

    def __init__(self) -> None:
        self._deferring = False
        self.signal_number = 0  # that of the signal that waits for `check`, 0 for none

    def install(self) -> Interruption:
        """Takes over both signals for the rest of the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)
        return self

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals wait for `check` from here on; a second one ends the process all the same."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def check(self) -> None:
        """Raises Interrupted once a signal has come."""
        if self.signal_number:
            raise Interrupted(self.signal_number)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._deferring and not self.signal_number:
            self.signal_number = number
            return
        cursor = _SHOW_CURSOR if os.isatty(2) else ""
        os.write(2, f"{cursor}stopped by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)
