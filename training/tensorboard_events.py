"""The numbers of metrics.jsonl as event files, which TensorBoard shows as curves. TensorFlow is not needed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NOT_A_CURVE = ("step", "seconds", "batch", "programs_compiled", "compile_seconds")
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
        # 0.01 s where checkpoints have imported protocol buffers. The toy run of the tests spends 0.05 s here in all.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{step:09}")
        self._writer.write_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        self.write(line for line in done if line["step"] == step)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Writes every number of the lines; they are in the file when it returns."""
        for line in lines:
            group = "validation" if any(name.startswith(VALIDATION) for name in line) else "train"
            curves = {
                f"{group}/{name.removeprefix(VALIDATION)}": value
                for name, value in line.items()
                if name not in NOT_A_CURVE and value is not None
            }
            values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in curves.items()]
            # One event for all values: 0.02 ms a line, where one for each took 0.4.
            event = self._event(step=line["step"], wall_time=time.time(), summary=self._summary(value=values))
            self._writer.write_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()
