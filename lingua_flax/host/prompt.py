"""Input of lines at a terminal."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HISTORY_LINES = 1000
log = logging.getLogger(__name__)


def prompt_lines(prompt: str, history: Path) -> Iterator[str]:
    """Yields each line typed until Ctrl-D; the arrow keys recall those in the file `history`, if it can be written."""
    readline = _load_readline(history)
    while True:
        # Readline restores the terminal only if the handler raises.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        history_length = readline.get_current_history_length() if readline else 0
        try:
            line = input(prompt)
            line.encode()
        except EOFError:
            print()
            return
        except UnicodeError:
            log.error("this line is not valid UTF-8; set the terminal to UTF-8")
            continue
        finally:
            signal.signal(signal.SIGINT, previous)
        # Readline omits empty and repeated lines.
        if readline and readline.get_current_history_length() > history_length:
            with contextlib.suppress(OSError):
                readline.append_history_file(1, history)
        yield line


def _load_readline(history: Path) -> ModuleType | None:
    """Returns the readline module with the history of the file, or None if this Python lacks the module."""
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
