"""Exports the network of a run for other programs: workdir -> a folder for CTranslate2, StableHLO, ... See --help."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.export import export
    from commands.main import main

    sys.exit(main(export))
