"""The log of a command."""

import logging
import sys


class _StderrHandler(logging.StreamHandler):
    """Writes every line to the current sys.stderr, which a progress bar replaces temporarily."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr() -> None:
    """Sends the project's log, and of other libraries only what is worth reading, to stderr."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[_StderrHandler()])
    for noisy in ("absl", "jax", "orbax", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    for talkative in ("sacrebleu", "httpx", "httpx2"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
