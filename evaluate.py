"""Scores a trained translator: workdir -> translations -> BLEU and chrF. See --help for every option."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # first of all: what is imported below can take seconds
    from commands.evaluate import evaluate_command
    from commands.main import main

    sys.exit(main(evaluate_command))
