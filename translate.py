"""Translates text with a trained run: lines in -> lines out. See --help for all options."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.main import main
    from commands.translate import translate

    sys.exit(main(translate))
