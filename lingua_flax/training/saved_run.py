"""A run in its workdir: opened, new or resumed from its newest intact checkpoint, and saved."""

import json
import logging
from typing import Any

from lingua_flax.data.corpora.held_out_splits import held_out_sources
from lingua_flax.data.known_words import WORDS_NAME
from lingua_flax.data.tokenizer import model_paths
from lingua_flax.data.training_batches import TrainingBatches
from lingua_flax.devices.processes import check_equal_on_all_processes, in_all_processes, on_first_process
from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import CONFIG_NAME, HELD_OUT_NAME, as_json, refused_changes, to_toml
from lingua_flax.runs.checkpoint import METADATA_FORMAT, Checkpoints, check_format
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.programs import Programs
from lingua_flax.training.progress import Plan, Progress
from lingua_flax.training.state import TrainState, checkpoint_items, state_from_checkpoint_items

log = logging.getLogger(__name__)


class SavedRun:
    """The files of a run; with several processes, the first one writes them. `checkpoints` are to be closed.

    `attention` is the implementation that the run uses from now on.
    """

    def __init__(self, prepared: Preparation, plan: Plan, workdir: Workdir, attention: str):
        """Creates and locks the workdir; raises UserError if it is in use or its metrics are damaged."""
        self._prepared, self._plan, self._workdir, self._attention = prepared, plan, workdir, attention
        on_first_process(workdir.create)
        shared = f"folder {workdir.path} (all processes must share one)"
        check_equal_on_all_processes(shared, workdir.lock_holder())
        # After locking: a run that is just ending may still append to them.
        self._metrics = in_all_processes(workdir.read_metrics)
        self.checkpoints = Checkpoints(workdir.checkpoints, prepared.config.training.keep_checkpoints)
        self._saved_version: tuple[int, int] | None = None  # last step and last validation of the newest checkpoint

    def open(self, programs: Programs, batches: TrainingBatches) -> tuple[TrainState, Progress, list[dict[str, Any]]]:
        """Returns state, progress and metrics.jsonl of the newest intact checkpoint, or those of a new run.

        Moves the batches to their position, and makes the files of the workdir agree. Raises UserError if checkpoints
        are damaged or belong to a different run.
        """
        restored = self._restored(programs, batches)
        state, progress = restored or (programs.initial_state(), Progress())
        last = {True: progress.validated, False: progress.step}  # by whether a line is that of a validation
        logged_lines = [line for line in self._metrics if line["step"] <= last["validation_loss" in line]]
        on_first_process(lambda: self._write_files(logged_lines, restarts=not restored))
        return programs.with_decay(state, self._plan.decay(progress)), progress, logged_lines

    def save(self, state: TrainState, progress: Progress, batches: TrainingBatches) -> None:
        """Saves the state unless the newest checkpoint already holds it, or the config alone determines it.

        Parameters of another run are saved before the first step: that run may go on, and this one be killed.
        """
        version = (progress.step, progress.validated)
        if self._saved_version == version or not (progress.step or self._prepared.inherited):
            return
        on_first_process(self._workdir.sync_metrics)
        metadata = {
            "format": METADATA_FORMAT,
            "version": VERSION,
            "data": batches.state(),
            "progress": progress._asdict(),
            "fingerprints": self._prepared.fingerprints,
            "several_sentences": self._prepared.several_sentences,
            "config": as_json(self._prepared.config),
            "num_steps": self._prepared.num_steps,
            "attention": self._attention,
        }
        self.checkpoints.save(progress.step, *checkpoint_items(state), metadata, progress.best_step)
        self._saved_version = version

    def _restored(self, programs: Programs, batches: TrainingBatches) -> tuple[TrainState, Progress] | None:
        templates = checkpoint_items(programs.state_template())
        checkpoint = self.checkpoints.restore_newest(*templates, self._check_unchanged)
        if checkpoint is None:
            return None
        params, training, metadata = checkpoint
        batches.restore(metadata["data"])
        progress = Progress(**metadata["progress"])
        if self._prepared.num_steps > metadata["num_steps"]:
            progress = progress.with_new_patience()
        self._saved_version = (progress.step, progress.validated)
        if not self._plan.is_finished(progress):
            log.info("resuming from step %d", progress.step)
            self._warn_of_changed_schedule(progress, metadata["num_steps"])
            if (before := metadata["attention"]) != self._attention:
                effect = "the next losses differ from those of an uninterrupted run in their last digits"
                log.warning("attention was %s until this checkpoint and is now %s: %s", before, self._attention, effect)
        return programs.placed(state_from_checkpoint_items(params, training)), progress

    def _check_unchanged(self, metadata: dict[str, Any]) -> None:
        path, current = self._workdir.path, self._prepared.fingerprints
        check_format(metadata, path)
        saved = metadata["fingerprints"]
        where = f"in checkpoint {metadata['step']}"
        if differences := refused_changes(metadata["config"], self._prepared.config, where):
            raise UserError(
                f"{path}: its checkpoints were made with a different config: {'; '.join(differences)}. "
                f"Restore the old values in {CONFIG_NAME}, or choose another --workdir"
            )
        if changed := [name for name in saved if saved[name] != current.get(name)]:
            raise UserError(
                f"{path}: its checkpoints were made with a different {' and a different '.join(changed)} "
                "(the content differs); restore the original files, or choose another --workdir. With --init-from "
                f"{path}, that run goes on from this one, and holds the same sentences out of a corpus that has grown"
            )

    def _warn_of_changed_schedule(self, progress: Progress, num_steps: int) -> None:
        schedule, now = self._prepared.config.optimizer.schedule, self._prepared.num_steps
        if (schedule == "cosine" or (schedule == "wsd" and not progress.decay_start)) and num_steps != now:
            steps = f"{num_steps} when this checkpoint was saved and now {now}"
            effect = "the learning rates change from here on"
            log.warning("the %s schedule depends on the number of steps, %s: %s", schedule, steps, effect)

    def _write_files(self, logged_lines: list[dict[str, Any]], *, restarts: bool) -> None:
        workdir, config = self._workdir, self._prepared.config
        last_logged = self._metrics[-1]["step"] if self._metrics else 0
        if restarts and last_logged > config.training.checkpoint_every:
            message = "%s has no checkpoint, so the run starts again; its metrics are now in %s"
            log.warning(message, workdir.path, workdir.set_metrics_aside())
        workdir.replace_metrics(logged_lines)  # later steps are repeated
        paths = model_paths(workdir.path, joint=config.tokenizer.joint)
        for path, model in zip(paths, self._prepared.tokenizer_models, strict=True):
            workdir.write(path.name, model)
        if self._prepared.words:
            workdir.write(WORDS_NAME, self._prepared.words.tsv)
        if held_out := held_out_sources(self._prepared.corpus):
            workdir.write(HELD_OUT_NAME, json.dumps(held_out).encode())
        workdir.write(CONFIG_NAME, to_toml(config).encode())
