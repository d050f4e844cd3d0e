"""Verifies that a run that is killed and resumed is identical to an uninterrupted one. See --help for all options."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.main import main
    from commands.verify_resume import verify_resume

    sys.exit(main(verify_resume))
