"""Lines typed at a terminal."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HISTORY_LINES = 1000
log = logging.getLogger(__name__)


def prompt_lines(prompt: str, history: Path) -> Iterator[str]:
    """Yields each line typed, until Ctrl-D; lines can be edited, and those of earlier times come back with the arrows.

    Args:
      history: the file that keeps them; where it cannot be written there is none.

    Raises:
      KeyboardInterrupt: at Ctrl-C.
    """
    readline = _with_history(history)
    while True:
        # Readline puts the terminal back as it was only where the handler raises.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        known = readline.get_current_history_length() if readline else 0
        try:
            line = input(prompt)
            line.encode()
        except EOFError:
            print()
            return
        except UnicodeError:
            log.error("that line is not valid UTF-8; is the terminal set to it?")
            continue
        finally:
            signal.signal(signal.SIGINT, previous)
        if readline and readline.get_current_history_length() > known:  # it leaves out empty and repeated lines
            with contextlib.suppress(OSError):
                readline.append_history_file(1, history)
        yield line


def _with_history(history: Path) -> ModuleType | None:
    """The readline module, where Python has it, with the lines of the file."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_history_length(HISTORY_LINES)
    with contextlib.suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        readline.read_history_file(history)
    return readline
