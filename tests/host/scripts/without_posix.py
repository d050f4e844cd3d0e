"""The command line on a machine that, like Windows, lacks what only POSIX has: modules, signals and functions."""

import os
import signal
import sys
from typing import Any, cast

for module in ("array_record", "grp", "pwd", "readline", "resource", "termios", "uvloop"):
    sys.modules[module] = cast(Any, None)  # importing it fails
for owner, names in ((signal, "SIGPIPE SIGHUP SIGUSR1 pthread_sigmask sigwait"), (os, "fork sched_getaffinity")):
    for name in names.split():
        delattr(owner, name)
vars(os)["process_cpu_count"] = os.cpu_count  # since Python 3.13, which would call os.sched_getaffinity

if __name__ == "__main__":  # worker processes import this script, too
    from lingua_flax.__main__ import main

    sys.exit(main())
