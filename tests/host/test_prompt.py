"""The prompt of the command translate, in a terminal."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from lingua_flax.host.prompt import prompt_lines
from tests.command_server import PROJECT_ON_PATH, python
from tests.conftest import HUNG_AFTER, PROMPTLY, ROOT


class Terminal:
    """A command of lingua-flax in a terminal of its own."""

    def __init__(self, program: str, *arguments: object, cache: Path) -> None:
        self.master, self.slave = pty.openpty()
        command = [*python(program), *map(str, arguments)]
        environment = os.environ | PROJECT_ON_PATH | {"XDG_CACHE_HOME": str(cache), "TERM": "dumb"}
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), self.slave)
        self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment, **streams)
        self.settings, self.seen = termios.tcgetattr(self.slave), ""

    def type(self, text: str, answer: str = "") -> None:
        """Types a text at the prompt and reads the output up to the answer and the next prompt."""
        os.write(self.master, text.encode())
        until = time.monotonic() + HUNG_AFTER
        while not re.search(f"{re.escape(answer)}.*> $", self.seen, re.DOTALL):
            assert time.monotonic() < until, self.seen
            assert self.process.poll() is None, self.seen + os.read(self.master, 4096).decode()
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode()
        self.seen = ""

    def __enter__(self):
        self.type("")
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        os.close(self.master)
        os.close(self.slave)


def test_the_prompt_translates_each_line_and_remembers_it(trained, tmp_path):
    with Terminal("translate", "--workdir", trained[0], "--beam-size", "1", cache=tmp_path) as translating:
        translating.type("one two.\r", "deux un !")
        translating.type("\r")  # an empty line stays empty
        translating.type("three.\r", "trois !")
        translating.type("\x1b[A\x1b[A\r", "deux un !")  # up, up: the first line
        for _ in range(PROMPTLY):  # a signal that arrives before Python starts to wait for input would not wake it
            translating.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert translating.process.wait(1) == 130
                break
        assert termios.tcgetattr(translating.slave) == translating.settings  # readline has restored the terminal


def test_the_prompt_ends_at_ctrl_d_and_handles_signals_only_while_it_waits(monkeypatch):
    monkeypatch.setattr("builtins.input", Mock(side_effect=["one.", EOFError]))
    handler, lines = signal.getsignal(signal.SIGINT), prompt_lines("> ")
    assert next(lines) == "one."
    assert signal.getsignal(signal.SIGINT) is handler
    assert not list(lines)
