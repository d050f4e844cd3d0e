"""Reports on a run, finished or under way, from the files in its workdir."""

import contextlib
import time
from pathlib import Path
from typing import Any

from lingua_flax.data.corpora.phrasebook import ambiguous_sentences
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.runs.checkpoint import best_saved_step, saved_steps
from lingua_flax.runs.learning_curves import CURVES_NAME
from lingua_flax.runs.metrics import parse_metrics
from lingua_flax.runs.workdir import Workdir


class RunReport:
    """Reads metrics.jsonl as it grows."""

    def __init__(self, workdir: Path):
        self._files = Workdir(workdir)
        self._forget()

    def _forget(self) -> None:
        self._last_line = b""
        self._position = 0
        self._step: int | None = None
        self._loss: float | None = None
        self._validation: dict[str, Any] | None = None
        self._samples: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        """Returns the state of the run as a JSON object."""
        self._read_metrics()
        seconds = None
        with contextlib.suppress(OSError):
            seconds = max(0.0, time.time() - self._files.metrics.stat().st_mtime)
        config = read_workdir_config(self._files.path)
        checkpoints = saved_steps(self._files.checkpoints)
        return {
            "name": self._files.path.name,
            "step": max(checkpoints, default=0) if self._step is None else self._step,
            "loss": self._loss,
            "num_steps": config.training.num_steps,
            "seconds_since_change": seconds,
            "checkpoints": checkpoints,
            "best_checkpoint": best_saved_step(self._files.checkpoints, checkpoints),
            "validation": self._validation,
            "curves": self._validation and f"run/{CURVES_NAME}?{self._validation['step']}",  # drawn anew at each
            "samples": self._samples,
            "label_smoothing": config.training.label_smoothing,
        }

    def _read_metrics(self) -> None:
        """Reads the lines that are new; all of them if the file was replaced, as training does when it resumes."""
        try:
            with open(self._files.metrics, "rb") as file:
                file.seek(self._position - len(self._last_line))
                if file.read(len(self._last_line)) != self._last_line:
                    self._forget()
                    file.seek(0)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            self._forget()
            return
        for line in lines:
            if line.endswith(b"\n"):
                with contextlib.suppress(UserError):  # damaged, for example by a power failure
                    self._add(parse_metrics(line, str(self._files.metrics)))
                self._last_line = line
                self._position += len(line)

    def _add(self, line: dict[str, Any]) -> None:
        if "validation_loss" in line:
            names = ("step", "validation_loss", "validation_loss_shuffled", "validation_chrf")
            self._validation = {name.removeprefix("validation_"): line.get(name) for name in names}
            self._samples = line.get("samples") or []
        elif line.get("loss") is not None:
            self._step, self._loss = line["step"], line["loss"]


def sample_sentence(workdir: Path) -> str | None:
    """Returns a source of the last validation, or None if there was none."""
    metrics = Workdir(workdir).metrics
    with contextlib.suppress(OSError, UserError):
        for line in reversed(metrics.read_bytes().splitlines()):
            # Of a long run, only few lines are parsed: the server waits for this when it starts.
            if b'"samples"' in line and (samples := parse_metrics(line, str(metrics)).get("samples")):
                return samples[0]["source"]
    return None


def example_sentences(workdir: Path) -> dict[str, Any]:
    """Returns sentences to begin with: some whose words depend on each other, and pairs for each ambiguous word."""
    data = read_workdir_config(workdir).data
    if data.name != "phrasebook" or data.source_language != "en":
        return {"sentences": [], "ambiguous": []}
    sentences = [
        "I swam across the river to get to the other bank.",
        "I walked along the river to the bank.",  # of which hiding "river" alone makes the bank one for money
        "I deposited my paycheck at the bank yesterday.",
        "The cat sat on the mat because it was tired.",
        "The mouse sat on the cushion because it was tired.",
        "The mouse sat on the cushion because it was comfortable.",
    ]
    ambiguous = [{"word": word, "sentences": pair} for word, pair in sorted(ambiguous_sentences().items())]
    return {"sentences": sentences, "ambiguous": ambiguous}
