"""What tests of several commands use."""

import functools
import re

import pytest

from tests.helpers import commands
from tests.helpers.folders import contents


@pytest.fixture
def refused(run, tmp_path):
    """Runs a command that must be refused in one sentence, which matches a regular expression, and write nothing."""

    def run_refused(words: str, *arguments: object, **options) -> None:
        before = contents(tmp_path)
        done = run(*arguments, **options)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert re.search(words, error), error
        assert "Traceback" not in done.stderr
        assert contents(tmp_path) == before

    return run_refused


@pytest.fixture(scope="session")
def succeed(run):
    """Runs a command like `run`, and checks that it succeeds."""
    return functools.partial(commands.succeed, run)
