"""The metrics of metrics.jsonl as TensorBoard event files, written without TensorFlow."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NOT_PLOTTED = ("step", "seconds", "validation_seconds", "batch", "samples", "programs_compiled", "compile_seconds")
VALIDATION = "validation_"


class EventFiles:
    """Writes a new event file of curves such as train/loss and validation/bleu.

    Uses the synchronous writer of tensorboardX: in its background thread an error such as a full disk would go
    unnoticed, and a flush would not wait for the queued events.
    """

    def __init__(self, folder: Path, logged_lines: Iterable[Mapping[str, Any]], step: int):
        """Creates the event file of a new or resumed run, of which `step` is the last step taken.

        TensorBoard names a run after the path of the folder, which is therefore the workdir itself.

        TensorBoard discards events of earlier processes from `step` on, whose validation may be repeated; its logged
        lines, from metrics.jsonl, are written again.
        """
        # Imported here because event files can be turned off.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{step:09}")
        self._writer.write_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        self.write(line for line in logged_lines if line["step"] == step)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Writes the curves of the lines and flushes the file."""
        for line in lines:
            group = "validation" if any(name.startswith(VALIDATION) for name in line) else "train"
            values = [
                self._summary.Value(tag=f"{group}/{name.removeprefix(VALIDATION)}", simple_value=value)
                for name, value in line.items()
                if name not in NOT_PLOTTED and value is not None
            ]
            # One event for all values of a line is far faster than one event per value.
            event = self._event(step=line["step"], wall_time=time.time(), summary=self._summary(value=values))
            self._writer.write_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
