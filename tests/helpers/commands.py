"""Running commands."""

import subprocess
from collections.abc import Callable

SMALL_NETWORK = (
    "--model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.embed-dim 16 --model.num-heads 2 "
    "--model.mlp-dim 32"
)


def succeed(
    run: Callable[..., subprocess.CompletedProcess[str]], *arguments: object, **options: object
) -> subprocess.CompletedProcess[str]:
    """Runs a command, with the fixture `run`, that must end with status 0."""
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done
