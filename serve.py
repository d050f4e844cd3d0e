"""Serves a run's network over HTTP, with LibreTranslate's protocol. See --help."""

import sys

from host.interruption import interruption

if __name__ == "__main__":
    interruption.install()  # before the imports below, which can take seconds
    from commands.main import main
    from commands.serve import serve

    sys.exit(main(serve))
