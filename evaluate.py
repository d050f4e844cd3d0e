"""The same as lingua-flax evaluate."""

import sys

from lingua_flax.__main__ import main

if __name__ == "__main__":
    sys.exit(main("evaluate"))
