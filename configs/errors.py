"""The ways in which a command ends early; anything else is a bug and keeps its traceback."""

import signal


class EarlyEnd(Exception):
    """Ends the command with an exit status and a message on stderr."""

    exit_status = 1


class UserError(EarlyEnd):
    """Something the user can mend, found before anything was written."""

    exit_status = 2


class RunError(EarlyEnd):
    """A run that failed later: three non-finite steps in a row, a full disk."""

    exit_status = 1


class Interrupted(EarlyEnd):
    """The work stopped where a signal asked it to."""

    def __init__(self, signal_number: int, message: str = ""):
        super().__init__(message or f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number
