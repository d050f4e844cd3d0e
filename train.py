"""Trains a translator: config -> training loop. See --help for every option."""

import sys

from runtime.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # first of all: what is imported below can take seconds
    from commands.train import train
    from configs.command import main

    sys.exit(main(train))
