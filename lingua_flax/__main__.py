"""The program lingua-flax, also started as python -m lingua_flax."""

import sys
from importlib.util import find_spec
from pathlib import Path

from lingua_flax.host.interruption import interruption


def main(command: str | None = None) -> int:
    """Runs a command on the process's arguments, which begin with its name if none is given; returns its status."""
    interruption.install()  # before the imports below, which can take seconds
    for needed in ("lingua_flax.model", "jax"):  # the first is a link, which some copies of the repository lack
        if not find_spec(needed):
            root = Path(__file__).parent.parent
            print(f"error: {needed} is missing, since this is not installed: pip install -e {root}", file=sys.stderr)
            return 2
    from lingua_flax.commands.main import run

    return run([command, *sys.argv[1:]] if command else sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
