"""The training of a run: it is opened, new or resumed, and takes steps, logs, validates and saves until it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from lingua_flax.data.corpora.held_out_splits import held_out_pairs
from lingua_flax.data.training_batches import TrainingBatch, TrainingBatches
from lingua_flax.devices.mesh import check_divides, make_mesh
from lingua_flax.devices.platform import computing
from lingua_flax.devices.processes import (
    check_equal_on_all_processes,
    in_all_processes,
    is_first_process,
    on_first_process,
)
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import Interrupted, RunError
from lingua_flax.host.interruption import Interruption
from lingua_flax.host.malloc import keep_freed_memory
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import config_digest
from lingua_flax.options.schema import Config, ProcessOptions
from lingua_flax.runs.checkpoint import digests
from lingua_flax.runs.new_workdir import run_files
from lingua_flax.runs.saved_run import SavedRun
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.checkpoint_metadata import check_unchanged, checkpoint_metadata, warn_of_changes
from lingua_flax.training.device_memory import explain_out_of_memory
from lingua_flax.training.in_flight import SignalExchange, StepMeter
from lingua_flax.training.kernels.fused_attention import selected_attention
from lingua_flax.training.learner import Learner
from lingua_flax.training.preparation import Preparation, prepare
from lingua_flax.training.progress import Plan, Progress
from lingua_flax.training.recorder import CHRF_OF, OnMetrics, Recorder, show_table
from lingua_flax.training.state import checkpoint_items
from lingua_flax.training.validation import ValidationSet, validate_directions, warm_up

MAX_SKIPPED = 3  # consecutive steps with a non-finite loss or gradient that stop the run
# From here on, keeping freed memory makes no step faster, and it fragments, so that the next step has no place in it:
# with a width of 512 and 6 layers, the peak after ten steps is 7.3 instead of 3.5 GB.
LARGE_WIDTH = 512
log = logging.getLogger(__name__)


def train(
    config: Config,
    workdir: Workdir,
    interruption: Interruption,
    on_metrics: OnMetrics = lambda line: None,
    processes: ProcessOptions = ProcessOptions(),
) -> Trainer:
    """Trains the run of a resolved config, new or resumed, to its end, and returns it; `on_metrics` as for `Recorder`.

    Raises UserError if the data or the config is invalid, if the processes differ in what they were given, or if the
    workdir is in use, damaged or that of a different run; Interrupted after a signal, with the state saved; RunError if
    the loss or its gradient was repeatedly not finite or memory is too small; and the error of a checkpoint that could
    not be written.
    """
    if config.model.embed_dim < LARGE_WIDTH:
        keep_freed_memory()
    with computing(config.devices, processes) as compilations, contextlib.closing(workdir):
        prepared, validation_sets, learner = _prepare(config, workdir)
        with explain_out_of_memory(learner.network, prepared.config, learner.mesh):
            meter, signals = StepMeter(compilations), SignalExchange(interruption)
            trainer = Trainer(prepared, validation_sets, learner, workdir, meter, signals, on_metrics)
            if not trainer.was_finished:
                trainer.train()
    return trainer


def _prepare(config: Config, workdir: Workdir) -> tuple[Preparation, Sequence[ValidationSet], Learner]:
    """Returns what the run needs; nothing has been written to the workdir yet."""
    on_first_process(workdir.lock)

    def prepared_with_mesh() -> tuple[Preparation, Sequence[ValidationSet], Mesh]:
        mesh = make_mesh(config.devices.mesh)
        check_divides(mesh, config)  # before a corpus is prepared
        selected_attention(config, mesh)  # likewise, to refuse an attention that these devices cannot compute
        prepared = prepare(config, workdir.path)
        return prepared, prepared.validation_sets(), mesh

    prepared, validation_sets, mesh = in_all_processes(prepared_with_mesh)
    compared = {
        "version of lingua-flax or jax": json_digest([VERSION, jax.__version__]),
        "config": config_digest(prepared.config),
        **prepared.data_digests,
        "validation split": _digest(validation_sets),
        "number of steps": json_digest(prepared.num_steps),
        "run in training.init_from": json_digest(digests("params", dict(prepared.inherited))),
    }
    for what, digest in compared.items():
        check_equal_on_all_processes(what, digest)
    # Only the learner still has the parameters of the other run, and only until it has begun.
    return dataclasses.replace(prepared, inherited={}), validation_sets, Learner(prepared, mesh)


def _digest(sets: Sequence[ValidationSet]) -> str:
    first, *others = (each.digest for each in sets) if sets else ("",)
    return json_digest([first, *others]) if others else first


class Trainer:
    """A run that is open, new or resumed; `train` takes it to its end."""

    def __init__(
        self,
        prepared: Preparation,
        validation_sets: Sequence[ValidationSet],
        learner: Learner,
        workdir: Workdir,
        meter: StepMeter,
        signals: SignalExchange,
        on_metrics: OnMetrics,
    ):
        """Opens the run: restores its newest intact checkpoint, or initializes the network."""
        self._prepared, self._validation_sets, self.learner = prepared, validation_sets, learner
        self._workdir, self._meter, self._signals, self._on_metrics = workdir, meter, signals, on_metrics
        self.plan = Plan(prepared.config, prepared.num_steps, bool(validation_sets))
        self.batches = TrainingBatches(prepared.planner, prepared.config.rows_per_batch, learner.local_rows)
        self._saved = SavedRun(workdir, prepared.config.training.keep_checkpoints)
        self.progress = self._restore_or_initialize()
        learner.set_decay(self.plan.decay(self.progress))
        held_out = held_out_pairs(prepared.corpus)
        models, words = prepared.tokenizer_models, prepared.words
        files = run_files(prepared.config, models, words, held_out, prepared.origin)
        self._logged_lines = self._saved.begin(files, prepared.config.training.checkpoint_every)
        self.was_finished = self.plan.is_finished(self.progress) and not self.plan.validation_is_due(self.progress)
        self._recorder: Recorder | None = None
        self._first_step = self.progress.step + 1  # of this process
        self._started = time.monotonic() - self.progress.seconds

    def _restore_or_initialize(self) -> Progress:
        """Returns how far the run has come, and puts state and data there."""
        prepared = self._prepared
        checkpoint = self._saved.restore(
            *self.learner.item_templates(), lambda metadata: check_unchanged(metadata, prepared, self._workdir.path)
        )
        if checkpoint is None:
            self.learner.initialize()
            return Progress()
        params, training, metadata = checkpoint
        self.learner.restore(params, training)
        self.batches.restore(metadata["data"])
        progress = Progress(**metadata["progress"])
        if prepared.num_steps > metadata["num_steps"]:
            progress = progress.with_new_patience()
        if not self.plan.is_finished(progress):
            log.info("resuming from step %d", progress.step)
            warn_of_changes(metadata, prepared, progress, self.learner.attention)
        return progress

    def train(self) -> None:
        """Trains to the end of the run; saves the state before it raises Interrupted for a signal."""
        self._compare_validations()
        self._recorder = self._make_recorder() if is_first_process() else None
        with (
            self._signals.interruption.deferred(),
            contextlib.closing(self.batches),
            contextlib.closing(self._saved.checkpoints),
            self._recorder or contextlib.nullcontext(),
        ):
            self.batches.start()
            self._compile_validation()
            self._meter.restart()
            try:
                self._loop()
            except Interrupted as interrupted:
                self._save()
                saved = f"step {self.progress.step} is saved" if self.progress.step else "no step was taken"
                message = f"{saved}; run the same command again to continue"
                raise Interrupted(interrupted.signal_number, message) from None
        log.info("compiled %s", self._meter.compilations)
        if jax.process_count() > 1:
            rows = f"{self.batches.rows_gathered} rows; each batch has {self._prepared.config.rows_per_batch}"
            log.info("the first of %d processes gathered %s", jax.process_count(), rows)

    def _loop(self) -> None:
        while True:
            if self.plan.validation_is_due(self.progress):
                self._validate()
            if self.plan.save_is_due(self.progress):
                self._save()
            if self.plan.is_finished(self.progress):
                return
            self._signals.check()
            self._saved.checkpoints.check()
            self._take_step(next(self.batches))
            last = self._meter.last_finished  # steps in flight belong to the next log interval
            if last and last % self._prepared.config.training.log_every == 0:
                self._log_finished_steps()

    def _take_step(self, batch: TrainingBatch) -> None:
        self.progress = progress = self.progress.after_step(batch.pairs)
        placed = self.learner.placed(batch.rows)
        self._meter.about_to_dispatch()
        metrics = self.learner.step(placed)
        if progress.step == self._first_step:
            log.info("step %d started: %s", progress.step, self._meter.compilations)
        self._signals.exchange()
        self._meter.dispatched(progress.step, metrics, self._epochs(), batch.real_tokens)

    def _log_all_steps(self) -> None:
        self._meter.wait()
        if self._meter.last_finished:
            self._log_finished_steps()

    def _log_finished_steps(self) -> None:
        """Writes the metrics of the finished steps; raises RunError if MAX_SKIPPED steps in a row were not finite."""
        self.progress = self.progress._replace(seconds=time.monotonic() - self._started)
        lines = self._meter.read(self.progress.seconds)
        failed = next((line for line in lines if line["skipped_in_a_row"] >= MAX_SKIPPED), None)
        if failed:
            lines = lines[: lines.index(failed) + 1]
        if self._recorder:
            self._recorder.steps(lines)
        for line in lines:
            if line["skipped_in_a_row"]:
                log.warning("step %d skipped: its loss or gradient is not finite", line["step"])
        if failed:
            raise RunError(
                f"step {failed['step']}: the loss or its gradient was not finite for {MAX_SKIPPED} steps in a row, at "
                f"learning rate {failed['learning_rate']:.2e}. Lower optimizer.peak_lr, raise optimizer.warmup_steps, "
                "or set optimizer.clip_norm, in a new --workdir; the last good checkpoint remains in "
                f"{self._workdir.checkpoints}"
            )

    def _validate(self) -> None:
        self._log_all_steps()
        started = time.monotonic()
        result = validate_directions(self.learner.translator(), self._validation_sets, self._signals.exchange_and_check)
        self.progress = progress = self.progress.after_validation(result.chrf, result.bleu)
        if self._recorder:
            is_best = progress.best_step == progress.step
            self._recorder.validation(progress.step, result, time.monotonic() - started, best=is_best)
        if self.plan.decays_from_now_on(progress):
            self.progress = progress = progress._replace(decay_start=progress.step)
            self.learner.set_decay(self.plan.decay(progress))
            end = self.plan.last_step(progress)
            if self._recorder:
                self._recorder.ends_at(end)
            log.info("patience is exhausted: the learning rate decays from here on, and the run ends at step %d", end)
        self._meter.restart()

    def _save(self) -> None:
        self._log_all_steps()
        # Before the first step, the config alone determines the state, unless it has parameters of another run: that
        # one may go on, and this one be killed.
        if self.progress.step or self._prepared.config.training.init_from:
            position, attention = self.batches.state(), self.learner.attention
            metadata = checkpoint_metadata(self._prepared, self.progress, position, attention)
            self._saved.save(*checkpoint_items(self.learner.state), metadata)

    def _compare_validations(self) -> None:
        """Forgets the best validation so far if it was one of another set; without validations, it stays the best."""
        validates_on = _digest(self._validation_sets) if self._validation_sets else self.progress.validation_set
        if self.progress.best_step and self.progress.validation_set != validates_on:
            log.warning(
                "the validation set or its scoring has changed: validations are no longer compared with the best so "
                f"far, {self.progress.best} at step {self.progress.best_step}, and patience begins anew"
            )
        self.progress = self.progress.with_validation_set(validates_on)

    def _make_recorder(self) -> Recorder:
        corpus, config = self._prepared.corpus, self._prepared.config
        title = f"{self._workdir.path.name}: {corpus.name}, {corpus.source_language} to {corpus.target_language}"
        last_step = self.plan.last_step(self.progress)
        bleu = self._validation_sets[0].bleu_description if self._validation_sets else ""
        steps = (last_step, self.progress.step)
        return Recorder(self._workdir, title, config, *steps, self._logged_lines, bleu, self._on_metrics)

    def _compile_validation(self) -> None:
        """Compiles the programs of validations while the step is compiled, if that is slow."""
        template = self.learner.translator_template()
        if self._validation_sets and template.pads_to_longest and jax.process_count() == 1:
            threading.Thread(target=warm_up, args=(template, self._validation_sets)).start()

    def _epochs(self) -> float:
        return self.progress.pairs / len(self._prepared.planner.draws)

    def show(self) -> None:
        """Prints what the run has come to on stdout."""
        if self.was_finished:
            summary = self.plan.summary(self.progress)
            print(f"{self._workdir.path}: finished: {summary}. Evaluate it with lingua-flax evaluate.")
        else:
            show_table(str(self._workdir.path), self._results())

    def _results(self) -> dict[str, str]:
        """Returns what the run has come to, in words, by name."""
        progress, state = self.progress, self.learner.state
        rows = {
            "steps": self.plan.steps_taken(progress),
            "epochs": f"{self._epochs():.1f}",
            "training time": f"{progress.seconds / 60:.1f} minutes",
            "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(state.params)):,}",
            "steps skipped": f"{int(state.skipped)}",  # replicated: a process that was stopped need not answer
        }
        if progress.best_step:
            rows["best validation"] = f"{progress.best} at step {progress.best_step:,} (greedy)"
        if progress.best_step and len(self._validation_sets) > 1:  # the only case in which the file need be read
            lines = [line for line in self._workdir.read_metrics() if line["step"] == progress.best_step]
            of_directions = (item for line in lines for item in line.items() if item[0].startswith(CHRF_OF))
            rows.update({f"of {name.removeprefix(CHRF_OF)}": f"{chrf:.2f}" for name, chrf in of_directions})
        return rows
