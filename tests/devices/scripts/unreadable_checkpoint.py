"""lingua-flax train in which process 1 cannot read the newest checkpoint, as after a stale file handle."""

import sys

import orbax.checkpoint as ocp

from lingua_flax.commands.main import run

readable = ocp.StandardCheckpointHandler.restore


def restore(self, path, *arguments, **options):
    if "/240/params" in str(path):
        raise OSError(116, "Stale file handle")
    return readable(self, path, *arguments, **options)


if sys.argv[sys.argv.index("--process-id") + 1] == "1":
    ocp.StandardCheckpointHandler.restore = restore
sys.exit(run(sys.argv[1:]))
