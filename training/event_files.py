"""The numbers of metrics.jsonl as event files, which TensorBoard shows as curves. TensorFlow is not needed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

NOT_A_CURVE = ("step", "seconds")
VALIDATION = "validation_"


class EventFiles:
    """Writes an event file of its own; train/loss and so on, validation/loss and so on.

    tensorboardX's writer without its thread, in which a full disk would go unnoticed, and a flush would not wait for
    what is in the queue.
    """

    def __init__(self, folder: Path, done: Iterable[Mapping[str, Any]], step: int):
        """Begins behind a step.

        Args:
          folder: it may have files of earlier processes; TensorBoard drops what they wrote from `step` on.
          done: the lines of metrics.jsonl; those of `step` itself are written again, since its validation may be yet to
            come.
          step: the last one that was taken.
        """
        folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{step:09}")
        self._writer.write_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        self.write(line for line in done if line["step"] == step)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Writes every number of the lines, 0.4 ms a line; they are in the file when it returns."""
        for line in lines:
            is_validation = any(name.startswith(VALIDATION) for name in line)
            group = "validation" if is_validation else "train"
            for name, value in line.items():
                if name not in NOT_A_CURVE and value is not None:
                    summary = scalar(f"{group}/{name.removeprefix(VALIDATION)}", value)
                    self._writer.write_event(Event(step=line["step"], wall_time=time.time(), summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()
