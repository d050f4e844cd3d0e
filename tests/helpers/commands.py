"""Running commands."""

import subprocess
from collections.abc import Callable


def succeed(
    run: Callable[..., subprocess.CompletedProcess[str]], *arguments: object, **options: object
) -> subprocess.CompletedProcess[str]:
    """Runs a command, with the fixture `run`, that must end with status 0."""
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done
