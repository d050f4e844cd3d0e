"""lingua-flax in which process 1 cannot read checkpoint 240, as after a stale file handle, and is killed at step 3."""

import os
import signal
import sys
from unittest import mock

import orbax.checkpoint as ocp

from lingua_flax.__main__ import run
from lingua_flax.training.trainer import Trainer

intact_restore, intact_step = ocp.StandardCheckpointHandler.restore, Trainer._take_step


def restore(self, path, *arguments, **options):
    if "/240/params" in str(path):
        raise OSError(116, "Stale file handle")
    return intact_restore(self, path, *arguments, **options)


def take_step(self, batch):
    if self.progress.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    intact_step(self, batch)


if sys.argv[sys.argv.index("--process-id") + 1] == "1":
    mock.patch.object(ocp.StandardCheckpointHandler, "restore", restore).start()
    mock.patch.object(Trainer, "_take_step", take_step).start()
sys.exit(run(sys.argv[1:]))
