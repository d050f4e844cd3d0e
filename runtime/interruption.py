"""SIGTERM and Ctrl-C become a flag that long work polls, so that state is saved before the process ends."""

from __future__ import annotations

import os
import signal
from types import FrameType

from configs.errors import Interrupted


class Interruption:
    """Remembers the first SIGTERM or SIGINT; a second one ends the process at once."""

    def __init__(self) -> None:
        self._signal_number: int | None = None

    def install(self) -> Interruption:
        """Takes over both signals for the rest of the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)
        return self

    def check(self) -> None:
        """Raises Interrupted once a signal has come."""
        if self._signal_number is not None:
            raise Interrupted(self._signal_number)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._signal_number is not None:
            os._exit(128 + number)
        self._signal_number = number
