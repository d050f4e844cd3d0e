"""A run on disk while it is trained: its files, its metrics and its checkpoints, which agree with each other."""

import logging
from collections.abc import Mapping
from typing import Any

from lingua_flax.devices.processes import check_equal_on_all_processes, in_all_processes, on_first_process
from lingua_flax.host.files import write_atomically
from lingua_flax.runs.checkpoint import Check, Checkpoints
from lingua_flax.runs.workdir import Workdir

log = logging.getLogger(__name__)


class SavedRun:
    """What is in the workdir of a run that is trained; of several processes, the first one writes it.

    Its `checkpoints` are to be closed.
    """

    def __init__(self, workdir: Workdir, keep_checkpoints: int):
        """Creates and locks the workdir; raises UserError if it is in use or its metrics are damaged."""
        self._workdir = workdir
        on_first_process(workdir.create)
        shared = f"folder {workdir.path} (all processes must share one)"
        check_equal_on_all_processes(shared, workdir.lock_holder())
        # After locking: a run that is just ending may still append to them.
        self._metrics = in_all_processes(workdir.read_metrics)
        self.checkpoints = Checkpoints(workdir.checkpoints, keep_checkpoints)
        self._newest: tuple[int, int] | None = None  # the last step and the last validation of the newest checkpoint

    def restore(self, params: Any, training: Any, check: Check) -> tuple[Any, Any, dict[str, Any]] | None:
        """Returns the newest intact checkpoint, or None if there is none, as `Checkpoints.restore_newest`."""
        checkpoint = self.checkpoints.restore_newest(params, training, check)
        if checkpoint:
            self._newest = _position(checkpoint[2])
        return checkpoint

    def begin(self, files: Mapping[str, bytes], checkpoint_every: int) -> list[dict[str, Any]]:
        """Writes the files, in this order, and returns the lines of metrics.jsonl up to the restored checkpoint.

        Later lines are dropped, since their steps are repeated; those of a run that has lost all its checkpoints, as
        their number tells, are set aside.
        """
        step, validated = self._newest or (0, 0)
        last = {True: validated, False: step}  # by whether a line is that of a validation
        lines = [line for line in self._metrics if line["step"] <= last["validation_loss" in line]]

        def write() -> None:
            last_logged = self._metrics[-1]["step"] if self._metrics else 0
            if not self._newest and last_logged > checkpoint_every:
                message = "%s has no checkpoint, so the run starts again; its metrics are now in %s"
                log.warning(message, self._workdir.path, self._workdir.set_metrics_aside())
            self._workdir.replace_metrics(lines)
            for name, content in files.items():
                write_atomically(self._workdir.path / name, content)

        on_first_process(write)
        return lines

    def save(self, params: Any, training: Any, metadata: dict[str, Any]) -> None:
        """Saves a checkpoint in the background, unless it is the newest one; raises the error of the last save."""
        position = _position(metadata)
        if position != self._newest:
            on_first_process(self._workdir.sync_metrics)
            self.checkpoints.save(position[0], params, training, metadata, metadata["progress"]["best_step"])
            self._newest = position


def _position(metadata: dict[str, Any]) -> tuple[int, int]:
    return metadata["progress"]["step"], metadata["progress"]["validated"]
