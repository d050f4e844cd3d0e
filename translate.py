"""The same as lingua-flax translate."""

import sys

from lingua_flax.__main__ import main

if __name__ == "__main__":
    sys.exit(main("translate"))
