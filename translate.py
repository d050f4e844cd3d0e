"""Translates text with a trained run: lines in -> lines out. See --help for every option."""

import sys

from runtime.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # first of all: what is imported below can take seconds
    from commands.translate import translate
    from configs.command import main

    sys.exit(main(translate))
