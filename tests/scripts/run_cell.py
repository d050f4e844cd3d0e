"""Stands in for the kernel of a notebook: runs a command, its argument, as a cell does."""

import signal
import sys

from notebooks.colab import run

signal.signal(signal.SIGINT, signal.default_int_handler)  # like a kernel; a shell makes background jobs ignore it
run(sys.argv[1])
