"""Trains a translator: config -> training loop. See --help for every option."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # first of all: what is imported below can take seconds
    from commands.main import main
    from commands.train import train

    sys.exit(main(train))
