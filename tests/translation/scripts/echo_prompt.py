"""The prompt of the command translate without a network: repeats each line, and keeps a history in the given file."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lingua_flax.commands.main import exit_status
from lingua_flax.commands.prompt import prompt_lines


def echo(argv: Sequence[str]) -> None:
    for line in prompt_lines("> ", Path(argv[0])):
        print(f"typed: {line}", flush=True)


sys.exit(exit_status(echo, sys.argv[1:]))
