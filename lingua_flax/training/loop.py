"""The training run: takes steps, logs, validates and saves until the run ends or a signal arrives."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from lingua_flax.data.training_batches import TrainingBatch, TrainingBatches
from lingua_flax.devices.compilation import Compilations
from lingua_flax.devices.processes import check_equal_on_all_processes, is_first_process, process_max
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import Interrupted, RunError
from lingua_flax.host.interruption import Interruption
from lingua_flax.options.config_files import config_digest
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.device_memory import explain_out_of_memory
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.programs import Programs
from lingua_flax.training.progress import Plan, Progress
from lingua_flax.training.recorder import NoRecorder, Recorder, show_table
from lingua_flax.training.saved_run import SavedRun
from lingua_flax.training.state import TrainState
from lingua_flax.training.step_meter import STEPS_IN_FLIGHT, DispatchedStep, StepMeter
from lingua_flax.training.validation import ValidationSet, validate, warm_up
from lingua_flax.translation.translator import Translator

MAX_SKIPPED = 3  # consecutive steps with a non-finite loss or gradient that stop the run
log = logging.getLogger(__name__)


def train(
    prepared: Preparation, mesh: Mesh, workdir: Workdir, interruption: Interruption, compilations: Compilations
) -> None:
    """Trains a run, new or resumed, to its end, and prints a summary.

    Raises UserError if the processes of the run differ in config, corpus or tokenizer, if another process is training
    in the workdir, or if its files are damaged or belong to a different run. Raises Interrupted if a signal arrived,
    after saving the state, and RunError if the loss or its gradient was repeatedly not finite or a device has too
    little memory. Also raises the error of a checkpoint that could not be written.
    """
    validation_set = prepared.validation_set()
    compared = {
        "config": config_digest(prepared.config),
        **prepared.fingerprints,
        "validation split": validation_set.digest,
        "number of steps": json_digest(prepared.num_steps),
    }
    for what, digest in compared.items():
        check_equal_on_all_processes(what, digest)
    programs = Programs(prepared, mesh)
    plan = Plan(prepared.config, prepared.num_steps, bool(validation_set))
    batches = prepared.batches(programs.local_rows)
    saved = SavedRun(prepared, plan, workdir)
    with explain_out_of_memory(programs.network, prepared.config, mesh):
        state, progress, logged_lines = saved.open(programs, batches)
        if plan.is_finished(progress) and not plan.validation_is_due(progress):
            summary = plan.summary(progress)
            print(f"{workdir.path}: finished: {summary}. Evaluate it with lingua-flax evaluate.")
            return
        if progress.best_step and progress.validation_set != validation_set.digest:
            log.warning(
                "the validation set or its scoring has changed: validations are no longer compared with the best so "
                f"far, {progress.best} at step {progress.best_step}, and patience begins anew"
            )
        progress = progress.with_validation_set(validation_set.digest)
        recorder = _new_recorder(prepared, plan, workdir, progress, logged_lines, validation_set.bleu_description)
        run = Run(prepared, plan, programs, batches, validation_set, saved, recorder, StepMeter(compilations),
                  SignalExchange(interruption), state, progress)  # fmt: skip
        with interruption.deferred(), contextlib.closing(batches), contextlib.closing(saved), recorder:
            run.train()
    log.info("compiled %s", compilations)
    if jax.process_count() > 1:
        count, per_batch = jax.process_count(), prepared.config.rows_per_batch
        log.info(
            "the first of %d processes gathered %d rows; each batch has %d", count, batches.rows_gathered, per_batch
        )
    show_table(str(workdir.path), run.results())


def _new_recorder(
    prepared: Preparation,
    plan: Plan,
    workdir: Workdir,
    progress: Progress,
    logged_lines: Sequence[dict[str, Any]],
    bleu_description: str,
) -> Recorder | NoRecorder:
    if not is_first_process():
        return NoRecorder()
    corpus = prepared.corpus
    title = f"{workdir.path.name}: {corpus.name}, {corpus.source_language} to {corpus.target_language}"
    recorder = Recorder(
        workdir, title, prepared.config, prepared.num_steps, progress.step, logged_lines, bleu_description
    )
    recorder.ends_at(plan.last_step(progress))
    return recorder


class SignalExchange:
    """The signals of all processes: several processes have to stop at the same step, so they exchange theirs."""

    def __init__(self, interruption: Interruption):
        self._interruption = interruption
        self._pending: deque[jax.Array | int] = deque()  # one entry per step, 0 for no signal

    def exchange(self) -> None:
        """Begins an exchange, at every step."""
        self._pending.append(process_max(self._interruption.signal_number))

    def check(self) -> None:
        """Raises Interrupted if a signal has arrived.

        The result of an exchange is read only once STEPS_IN_FLIGHT more steps have been dispatched: reading it at once
        would wait for the device.
        """
        if jax.process_count() == 1:
            self._interruption.check()
        while len(self._pending) > STEPS_IN_FLIGHT:
            if number := int(self._pending.popleft()):
                raise Interrupted(number)

    def exchange_and_check(self, _: int) -> None:
        """Raises Interrupted if a signal has arrived; waits for the other processes."""
        if number := int(process_max(self._interruption.signal_number)):
            raise Interrupted(number)


def _compile_validation(translator: Translator, validation_set: ValidationSet) -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the validation itself will report the error
        warm_up(translator, validation_set)


class Run:
    """A run that is open: `train` takes it to its end."""

    def __init__(
        self,
        prepared: Preparation,
        plan: Plan,
        programs: Programs,
        batches: TrainingBatches,
        validation_set: ValidationSet,
        saved: SavedRun,
        recorder: Recorder | NoRecorder,
        meter: StepMeter,
        signals: SignalExchange,
        state: TrainState,
        progress: Progress,
    ):
        self._prepared, self._plan, self._programs = prepared, plan, programs
        self._batches, self._validation_set = batches, validation_set
        self._saved, self._recorder, self._meter, self._signals = saved, recorder, meter, signals
        self._state, self._progress = state, progress
        self._first_step = progress.step + 1  # of this process
        self._started = time.monotonic() - progress.seconds

    def train(self) -> None:
        """Trains to the end of the run; saves the state before it raises Interrupted for a signal."""
        self._batches.start()
        template = self._programs.translator_template()
        if self._validation_set and template.pads_to_longest and jax.process_count() == 1:
            # While the step compiles: both are slow.
            threading.Thread(target=_compile_validation, args=(template, self._validation_set)).start()
        self._meter.restart()
        try:
            self._loop()
        except Interrupted as interrupted:
            self._log_all_steps()
            self._save()
            saved = f"step {self._progress.step} is saved" if self._progress.step else "no step was taken"
            message = f"{saved}; run the same command again to continue"
            raise Interrupted(interrupted.signal_number, message) from None

    def _loop(self) -> None:
        while True:
            if self._plan.validation_is_due(self._progress):
                self._log_all_steps()
                self._validate()
            if self._plan.save_is_due(self._progress):
                self._log_all_steps()
                self._save()
            if self._plan.is_finished(self._progress):
                return
            self._signals.check()
            self._saved.check()
            self._take_step(next(self._batches))
            if self._log_is_due():
                self._log_finished_steps()

    def _take_step(self, batch: TrainingBatch) -> None:
        self._progress = progress = self._progress.after_step(batch.pairs)
        placed = self._programs.placed_rows(batch.rows)
        self._meter.about_to_dispatch()
        self._state, metrics = self._programs.train_step(self._state, placed)
        if progress.step == self._first_step:
            log.info("step %d started: %s", progress.step, self._meter.compilations)
        self._signals.exchange()
        epoch = progress.pairs / self._prepared.pairs_per_epoch
        self._meter.dispatched(DispatchedStep(progress.step, metrics, epoch, batch.real_tokens))

    def _log_is_due(self) -> bool:
        """Returns whether the last finished step ends a log interval; steps in flight belong to the next one."""
        step = self._meter.last_finished
        return step is not None and step % self._prepared.config.training.log_every == 0

    def _log_all_steps(self) -> None:
        """Waits for the steps in flight, then writes the metrics of all steps not logged yet."""
        self._meter.wait()
        if self._meter.last_finished is not None:
            self._log_finished_steps()

    def _log_finished_steps(self) -> None:
        """Writes the metrics of the finished steps; raises RunError if MAX_SKIPPED steps in a row were not finite."""
        self._progress = replace(self._progress, seconds=time.monotonic() - self._started)
        lines, pace = self._meter.read(self._progress.seconds)
        failed = next((line for line in lines if line["skipped_in_a_row"] >= MAX_SKIPPED), None)
        if failed:
            lines = lines[: lines.index(failed) + 1]
        self._recorder.steps(lines, pace)
        for line in lines:
            if line["skipped_in_a_row"]:
                log.warning("step %d skipped: its loss or gradient is not finite", line["step"])
        if failed:
            raise RunError(
                f"step {failed['step']}: the loss or its gradient was not finite for {MAX_SKIPPED} steps in a row, at "
                f"learning rate {failed['learning_rate']:.2e}. Lower optimizer.peak_lr, raise optimizer.warmup_steps, "
                "or set optimizer.clip_norm, in a new --workdir; the last good checkpoint remains in "
                f"{self._saved.folder}"
            )

    def _validate(self) -> None:
        started = time.monotonic()
        translator = self._programs.translator(self._state.eval_params)
        result = validate(translator, self._validation_set, self._signals.exchange_and_check)
        self._progress = progress = self._progress.after_validation(result.ranking_bleu, result.loss)
        is_best = progress.best_step == progress.step
        self._recorder.validation(progress.step, result, time.monotonic() - started, best=is_best)
        if self._plan.decays_from_now_on(progress):
            self._progress = progress = replace(progress, decay_start=progress.step)
            self._state = self._programs.with_decay(self._state, self._plan.decay(progress))
            end = self._plan.last_step(progress)
            self._recorder.ends_at(end)
            log.info("patience is exhausted: the learning rate decays from here on, and the run ends at step %d", end)
        self._meter.restart()

    def _save(self) -> None:
        self._saved.save(self._state, self._progress, self._batches)

    def results(self) -> dict[str, str]:
        """Returns what the run has come to, in words, by name."""
        progress = self._progress
        rows = {
            "steps": self._plan.steps_taken(progress),
            "epochs": f"{progress.pairs / self._prepared.pairs_per_epoch:.1f}",
            "training time": f"{progress.seconds / 60:.1f} minutes",
            "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(self._state.params)):,}",
            "steps skipped": f"{int(self._state.skipped)}",  # replicated: a process that was stopped need not answer
        }
        if progress.best_step:
            measure, value = progress.best.split()
            description = f" ({self._validation_set.bleu_description})" if measure == "BLEU" else ""
            rows[f"best validation {measure}"] = f"{value} at step {progress.best_step:,}{description}"
        return rows
