"""Runs a command of lingua-flax with a limit on the size of files, which stands for a full disk."""

import resource
import sys

from lingua_flax.__main__ import main

if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
    try:
        sys.exit(main())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
