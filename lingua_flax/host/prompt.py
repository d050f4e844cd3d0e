"""Input of lines at a terminal."""

import contextlib
import importlib
import logging
import signal
from collections.abc import Iterator

log = logging.getLogger(__name__)


def prompt_lines(prompt: str) -> Iterator[str]:
    """Yields each line typed until Ctrl-D; the arrow keys recall earlier ones, unless this Python lacks readline."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # with which input() edits lines from now on
    while True:
        # Readline restores the terminal only if the handler raises.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
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
        yield line
