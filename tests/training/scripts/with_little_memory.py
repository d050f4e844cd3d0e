"""Runs a command of lingua-flax with 8 GB of address space."""

import resource
import sys

from lingua_flax.__main__ import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (8_000_000_000,) * 2)
    sys.exit(main())
