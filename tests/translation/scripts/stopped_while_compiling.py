"""Runs a command that trains in the given workdir and gets SIGTERM after a step, before it compiles validation.

It also tries to compile when Python ends, where no thread can be started any more.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lingua_flax.__main__ import main
from lingua_flax.training import trainer


def warm_up(translator: Any, sets: Any) -> None:
    while not metrics.exists() or not metrics.stat().st_size:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    compile_validation(translator, sets)
    threading.main_thread().join()
    compile_validation(translator, sets)


if __name__ == "__main__":
    compile_validation, trainer.warm_up = trainer.warm_up, warm_up
    metrics = Path(sys.argv.pop(1), "metrics.jsonl")
    sys.exit(main())
