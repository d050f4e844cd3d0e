"""Stands in for a training run, which starts slowly: saves at the first signal, and ends at once at a second one."""

import contextlib
import sys
import time
from pathlib import Path

from lingua_flax.host.errors import Interrupted
from lingua_flax.host.interruption import interruption

interruption.install()
with contextlib.suppress(Interrupted), interruption.deferred():
    Path(sys.argv[1], "started").touch()
    while not interruption.signal_number:
        time.sleep(0.01)
    Path(sys.argv[1], "saved").write_text(str(interruption.signal_number))
    print("saved", flush=True)
