"""Proves that a run which is killed is the run that is not: config -> both of them, compared. See --help."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # first of all: what is imported below can take seconds
    from commands.main import main
    from commands.verify_resume import verify_resume

    sys.exit(main(verify_resume))
