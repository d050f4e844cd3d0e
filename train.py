"""Trains a translator: config -> training loop. See --help for all options."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.main import main
    from commands.train import train

    sys.exit(main(train))
