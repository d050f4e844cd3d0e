"""Translates a training split into a corpus for a student: workdir -> pairs of sources and translations. See --help."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.distill import distill
    from commands.main import main

    sys.exit(main(distill))
