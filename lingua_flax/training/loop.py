"""The training run: takes steps, logs, validates and saves until the run ends or a signal arrives."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque

import jax
from jax.sharding import Mesh

from lingua_flax.data.training_batches import TrainingBatch
from lingua_flax.devices.compilation import Compilations
from lingua_flax.devices.processes import check_equal_on_all_processes, in_all_processes, is_first_process, process_max
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import Interrupted, RunError
from lingua_flax.host.interruption import Interruption
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import config_digest
from lingua_flax.runs.checkpoint import digests
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.device_memory import explain_out_of_memory
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.programs import Programs
from lingua_flax.training.progress import Plan
from lingua_flax.training.recorder import OnMetrics, Recorder, show_table
from lingua_flax.training.saved_run import SavedRun
from lingua_flax.training.step_meter import STEPS_IN_FLIGHT, DispatchedStep, StepMeter
from lingua_flax.training.validation import ValidationSet, validate, warm_up

MAX_SKIPPED = 3  # consecutive steps with a non-finite loss or gradient that stop the run
log = logging.getLogger(__name__)


def train(
    prepared: Preparation,
    mesh: Mesh,
    workdir: Workdir,
    interruption: Interruption,
    compilations: Compilations,
    on_metrics: OnMetrics,
) -> Run:
    """Trains a run, new or resumed, to its end, and returns it; `on_metrics` is as for `Recorder`.

    Raises UserError if the processes differ in what they were given, or if the workdir is in use, damaged or that of a
    different run; Interrupted after a signal, with the state saved; RunError if the loss or its gradient was repeatedly
    not finite or memory is too small; and the error of a checkpoint that could not be written.
    """
    validation_set = in_all_processes(prepared.validation_set)
    compared = {
        "version of lingua-flax or jax": json_digest([VERSION, jax.__version__]),
        "config": config_digest(prepared.config),
        **prepared.fingerprints,
        "validation split": validation_set.digest,
        "number of steps": json_digest(prepared.num_steps),
        "run in training.init_from": json_digest(digests("params", dict(prepared.inherited))),
    }
    for what, digest in compared.items():
        check_equal_on_all_processes(what, digest)
    programs = Programs(prepared, mesh)
    with explain_out_of_memory(programs.network, prepared.config, mesh):
        run = Run(prepared, programs, validation_set, workdir, interruption, compilations, on_metrics)
        if run.was_finished:
            return run
        run.train()
    log.info("compiled %s", compilations)
    if jax.process_count() > 1:
        rows = f"{run.batches.rows_gathered} rows; each batch has {prepared.config.rows_per_batch}"
        log.info("the first of %d processes gathered %s", jax.process_count(), rows)
    return run


class SignalExchange:
    """The signals of all processes: several processes have to stop at the same step, so they exchange theirs."""

    def __init__(self, interruption: Interruption):
        self._interruption = interruption
        self._pending: deque[jax.Array | int] = deque()  # one entry per step, 0 for no signal

    def exchange(self) -> None:
        """Begins an exchange, at every step."""
        self._pending.append(process_max(self._interruption.signal_number))

    def check(self) -> None:
        """Raises Interrupted after a signal; an exchange is read STEPS_IN_FLIGHT steps later, so that nothing waits."""
        if jax.process_count() == 1:
            self._interruption.check()
        while len(self._pending) > STEPS_IN_FLIGHT:
            if number := int(self._pending.popleft()):
                raise Interrupted(number)

    def exchange_and_check(self, _: int) -> None:
        """Raises Interrupted if a signal has arrived; waits for the other processes."""
        if number := int(process_max(self._interruption.signal_number)):
            raise Interrupted(number)


class Run:
    """A run that is open, new or resumed; `train` takes it to its end."""

    def __init__(
        self,
        prepared: Preparation,
        programs: Programs,
        validation_set: ValidationSet,
        workdir: Workdir,
        interruption: Interruption,
        compilations: Compilations,
        on_metrics: OnMetrics,
    ):
        self._prepared, self._programs, self._validation_set = prepared, programs, validation_set
        self._workdir, self._interruption, self._on_metrics = workdir, interruption, on_metrics
        self._signals, self._meter = SignalExchange(interruption), StepMeter(compilations)
        self.plan = Plan(prepared.config, prepared.num_steps, bool(validation_set))
        self.batches = prepared.batches(programs.local_rows)
        self._saved = SavedRun(prepared, self.plan, workdir, programs.attention)
        self._state, self.progress, self._logged_lines = self._saved.open(programs, self.batches)
        self.was_finished = self.plan.is_finished(self.progress) and not self.plan.validation_is_due(self.progress)
        self._recorder: Recorder | None = None
        self._first_step = self.progress.step + 1  # of this process
        self._started = time.monotonic() - self.progress.seconds

    def train(self) -> None:
        """Trains to the end of the run; saves the state before it raises Interrupted for a signal."""
        # Without validations, the best so far stays the best.
        validates_on = self._validation_set.digest if self._validation_set else self.progress.validation_set
        if self.progress.best_step and self.progress.validation_set != validates_on:
            log.warning(
                "the validation set or its scoring has changed: validations are no longer compared with the best so "
                f"far, {self.progress.best} at step {self.progress.best_step}, and patience begins anew"
            )
        self.progress = self.progress.with_validation_set(validates_on)
        if is_first_process():
            corpus, bleu = self._prepared.corpus, self._validation_set.bleu_description
            title = f"{self._workdir.path.name}: {corpus.name}, {corpus.source_language} to {corpus.target_language}"
            steps = (self.plan.last_step(self.progress), self.progress.step)
            run = (self._workdir, title, self._prepared.config)
            self._recorder = Recorder(*run, *steps, self._logged_lines, bleu, self._on_metrics)
        with (
            self._interruption.deferred(),
            contextlib.closing(self.batches),
            contextlib.closing(self._saved.checkpoints),
            self._recorder or contextlib.nullcontext(),
        ):
            self.batches.start()
            template = self._programs.translator_template()
            if self._validation_set and template.pads_to_longest and jax.process_count() == 1:
                # While the step compiles: both are slow.
                threading.Thread(target=warm_up, args=(template, self._validation_set)).start()
            self._meter.restart()
            try:
                self._loop()
            except Interrupted as interrupted:
                self._save()
                saved = f"step {self.progress.step} is saved" if self.progress.step else "no step was taken"
                message = f"{saved}; run the same command again to continue"
                raise Interrupted(interrupted.signal_number, message) from None

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
        placed = self._programs.placed_rows(batch.rows)
        self._meter.about_to_dispatch()
        self._state, metrics = self._programs.train_step(self._state, placed)
        if progress.step == self._first_step:
            log.info("step %d started: %s", progress.step, self._meter.compilations)
        self._signals.exchange()
        epoch = progress.pairs / len(self._prepared.planner.draws)
        self._meter.dispatched(DispatchedStep(progress.step, metrics, epoch, batch.real_tokens))

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
        translator = self._programs.translator(self._state.eval_params)
        result = validate(translator, self._validation_set, self._signals.exchange_and_check)
        self.progress = progress = self.progress.after_validation(result.ranking_bleu, result.loss)
        if self._recorder:
            is_best = progress.best_step == progress.step
            self._recorder.validation(progress.step, result, time.monotonic() - started, best=is_best)
        if self.plan.decays_from_now_on(progress):
            self.progress = progress = progress._replace(decay_start=progress.step)
            self._state = self._programs.with_decay(self._state, self.plan.decay(progress))
            end = self.plan.last_step(progress)
            if self._recorder:
                self._recorder.ends_at(end)
            log.info("patience is exhausted: the learning rate decays from here on, and the run ends at step %d", end)
        self._meter.restart()

    def _save(self) -> None:
        self._log_all_steps()
        self._saved.save(self._state, self.progress, self.batches)

    def show(self) -> None:
        """Prints what the run has come to on stdout."""
        if self.was_finished:
            summary = self.plan.summary(self.progress)
            print(f"{self._workdir.path}: finished: {summary}. Evaluate it with lingua-flax evaluate.")
        else:
            show_table(str(self._workdir.path), self._results())

    def _results(self) -> dict[str, str]:
        """Returns what the run has come to, in words, by name."""
        progress = self.progress
        rows = {
            "steps": self.plan.steps_taken(progress),
            "epochs": f"{progress.pairs / len(self._prepared.planner.draws):.1f}",
            "training time": f"{progress.seconds / 60:.1f} minutes",
            "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(self._state.params)):,}",
            "steps skipped": f"{int(self._state.skipped)}",  # replicated: a process that was stopped need not answer
        }
        if progress.best_step:
            measure, value = progress.best.split()
            how = f" ({self._validation_set.bleu_description})" if measure == "BLEU" and self._validation_set else ""
            rows[f"best validation {measure}"] = f"{value} at step {progress.best_step:,}{how}"
        return rows
