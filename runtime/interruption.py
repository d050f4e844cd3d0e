"""SIGTERM and Ctrl-C: the end of the command at once, or a flag to poll while there is state to save first."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from configs.errors import Interrupted


class Interruption:
    """Both signals raise Interrupted where they find the program, but within `deferred` only where it calls `check`.

    A second signal while the first is deferred ends the process at once.
    """

    def __init__(self) -> None:
        self._deferring = False
        self._signal_number: int | None = None

    def install(self) -> Interruption:
        """Takes over both signals for the rest of the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)
        return self

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals wait for `check` from here on."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def check(self) -> None:
        """Raises Interrupted once a signal has come."""
        if self._signal_number is not None:
            raise Interrupted(self._signal_number)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if not self._deferring:
            raise Interrupted(number)
        if self._signal_number is not None:
            os._exit(128 + number)
        self._signal_number = number
