"""Runs a command of lingua-flax and hides the package libtpu from it, as if the extra were not installed."""

import importlib.util
import sys

from lingua_flax.__main__ import main

if __name__ == "__main__":
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "libtpu" else find(name, *rest)
    sys.exit(main())
