"""Scores a trained translator: workdir -> translations -> BLEU and chrF. See --help for all options."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.evaluate import evaluate_command
    from commands.main import main

    sys.exit(main(evaluate_command))
