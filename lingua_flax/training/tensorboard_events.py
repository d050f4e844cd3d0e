"""The metrics of metrics.jsonl as TensorBoard event files, written without TensorFlow."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

NOT_PLOTTED = ("step", "seconds", "validation_seconds", "batch", "samples", "programs_compiled", "compile_seconds")
VALIDATION = "validation_"


class EventFiles:
    """Writes a new event file: curves such as train/loss and best/loss, options of the run, and samples as text.

    Uses the synchronous writer of tensorboardX: in its background thread an error such as a full disk would go
    unnoticed, and a flush would not wait for the queued events.
    """

    def __init__(self, folder: Path, logged_lines: Sequence[Mapping[str, Any]], step: int, options: Mapping[str, Any]):
        """Creates the event file of a new or resumed run, of which `step` is the last step taken, with these options.

        TensorBoard names a run after the path of the folder, which is therefore the workdir itself.

        TensorBoard discards events of earlier processes from `step` on, whose validation may be repeated; its logged
        lines, from metrics.jsonl, are written again.
        """
        # Imported here because event files can be turned off.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import hparams, text

        self._event, self._summary, self._text = Event, Summary, text
        self._best: dict[str, float] = {}
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{step:09}")
        self._writer.write_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        # Without the plugin's list of all options, which one run would determine for all that are shown together.
        _, start, _ = hparams(options, {})
        self._writer.write_event(Event(step=step, summary=start))
        for line in logged_lines:
            self._update_best(line)
        self.write(line for line in logged_lines if line["step"] == step)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Writes the curves of the lines and flushes the file."""
        for line in lines:
            group = "validation" if any(name.startswith(VALIDATION) for name in line) else "train"
            curves = {
                f"{group}/{name.removeprefix(VALIDATION)}": value
                for name, value in line.items()
                if name not in NOT_PLOTTED and value is not None
            }
            if group == "validation":
                curves |= self._update_best(line)
            values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in curves.items()]
            if line.get("samples"):
                values += self._text("validation/samples", _as_code(line["samples"])).value
            # One event for all values of a line is far faster than one event per value.
            event = self._event(step=line["step"], wall_time=time.time(), summary=self._summary(value=values))
            self._writer.write_event(event)
        self._writer.flush()

    def _update_best(self, line: Mapping[str, Any]) -> dict[str, float]:
        """Returns the lowest loss and the highest BLEU of all validations up to that of a line."""
        for tag, name, better in (("best/loss", "validation_loss", min), ("best/bleu", "validation_bleu", max)):
            if line.get(name) is not None:
                self._best[tag] = better(line[name], self._best.get(tag, line[name]))
        return self._best

    def close(self) -> None:
        self._writer.close()


def _as_code(samples: Iterable[Mapping[str, str]]) -> str:
    return "\n\n".join(
        "\n".join(f"    {name:13}{' '.join(text.splitlines())}" for name, text in sample.items()) for sample in samples
    )
