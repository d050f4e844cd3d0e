"""The training run: takes steps, logs, validates and saves until the run ends or a signal arrives."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from lingua_flax.data.tokenizer import model_paths
from lingua_flax.data.training_batches import TrainingBatch
from lingua_flax.devices.compilation import Compilations
from lingua_flax.devices.mesh import check_divides_vocabularies
from lingua_flax.devices.platform import compute_precision, pads_to_longest
from lingua_flax.devices.processes import (
    check_equal_on_all_processes,
    is_first_process,
    on_first_process,
    process_max,
)
from lingua_flax.devices.sharding import local_rows, put_on_devices, put_rows_on_devices, replicated, sharded_shapes
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import Interrupted, RunError, UserError
from lingua_flax.host.interruption import Interruption
from lingua_flax.host.version import VERSION
from lingua_flax.model.parameters import replace_params
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.config_files import CONFIG_NAME, as_json, config_digest, refused_changes, to_toml
from lingua_flax.runs.checkpoint import RECORD_FORMAT, Checkpoints, check_format
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.device_memory import explain_out_of_memory
from lingua_flax.training.kernels.fast_attention import fast_attention
from lingua_flax.training.optimizer import Decay
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.recorder import NoRecorder, Recorder, show_table
from lingua_flax.training.state import (
    TrainState,
    checkpoint_items,
    initial_state,
    param_shardings,
    state_from_checkpoint_items,
    state_shardings,
)
from lingua_flax.training.step import make_train_step
from lingua_flax.training.step_meter import STEPS_IN_FLIGHT, DispatchedStep, StepMeter
from lingua_flax.training.validation import ValidationSet, bleu_description, validate, warm_up
from lingua_flax.translation.translator import Translator

MAX_SKIPPED = 3  # consecutive steps with a non-finite loss or gradient that stop the run
log = logging.getLogger(__name__)


@dataclasses.dataclass
class Progress:
    """The progress of a run, saved as JSON with every checkpoint.

    Attributes:
      seconds: training time so far, including that of the earlier processes of a resumed run.
      validated: the last step at which the model was validated, 0 if there was none.
      decay_start: the step at which the end of patience began the decay of the "wsd" schedule, if it did.
    """

    step: int = 0
    seconds: float = 0.0
    pairs: int = 0
    validated: int = 0
    best_bleu: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0
    decay_start: int | None = None


class Run:
    """A training run in a workdir: call `open`, then `train`."""

    def __init__(
        self,
        prepared: Preparation,
        mesh: Mesh,
        workdir: Workdir,
        interruption: Interruption,
        compilations: Compilations,
    ):
        """Sets up the run without reading or writing the workdir.

        Raises UserError if the mesh does not divide the vocabularies, or if the processes of the run differ in config,
        corpus or tokenizer.
        """
        config, tokenizer = prepared.config, prepared.tokenizer
        self._config = config
        self._prepared = prepared
        self._workdir = workdir
        self._interruption = interruption
        self._compilations = compilations
        self._mesh = mesh
        self._vocab_sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        check_divides_vocabularies(mesh, self._vocab_sizes)
        for what, digest in {"config": config_digest(config), **prepared.fingerprints}.items():
            check_equal_on_all_processes(what, digest)
        precision = compute_precision(config.devices.precision, mesh)
        fast = fast_attention(config, mesh)
        device = mesh.devices.flat[0]
        log.info(
            "computing on %d x %s, %s, attention: %s",
            mesh.size,
            device.device_kind,
            precision.products,
            fast or "plain",
        )
        self._network = structure(config.model, *self._vocab_sizes, precision, fast)
        self._train_step = make_train_step(self._network, config, prepared.num_steps, self._mesh)
        self._state_shardings = state_shardings(self._network, config, mesh)
        gathered = param_shardings(self._network, self._mesh, gathered=True)
        self._gather = jax.jit(lambda params: params, out_shardings=gathered)
        plain = structure(config.model, *self._vocab_sizes, precision) if fast else self._network
        to_longest = pads_to_longest(config.devices.padding, mesh)
        self._translator = Translator(
            plain.graphdef, None, tokenizer, config.model, mesh=mesh, pads_to_longest=to_longest
        )
        self._local_rows = local_rows(self._mesh, config.rows_per_batch)
        self._batches = prepared.batches(self._local_rows)
        validation_pairs = prepared.validation_pairs()
        check_equal_on_all_processes("validation split", json_digest(validation_pairs))
        self._validation_set = ValidationSet.of(validation_pairs, tokenizer)
        self._clock = Progress()
        self._meter = StepMeter(compilations)
        self._saved_version: tuple[int, int] | None = None  # last step and last validation of the newest checkpoint
        self._pending_signals: deque[jax.Array | int] = deque()  # one entry per step, 0 for no signal
        self._has_taken_step = False  # in this process

    # Running.

    def open(self) -> None:
        """Creates the workdir or resumes from its newest checkpoint, and puts the training state on the devices.

        Raises UserError if another process is training in the workdir, or if its metrics or checkpoints are damaged or
        belong to a different run. Raises RunError if a device has too little memory.
        """
        on_first_process(self._workdir.create)
        metrics = self._workdir.read_metrics()  # after locking: a run that is just ending may still append to them
        self._checkpoints = Checkpoints(self._workdir.checkpoints, self._config.training.keep_checkpoints)
        with explain_out_of_memory(self._network, self._config, self._mesh):
            self._state = self._restored_state() or self._fresh_state()
        self._set_decay()
        self._logged_lines = list(filter(self._is_in_state, metrics))
        if not self._clock.step and metrics and metrics[-1]["step"] > self._config.training.checkpoint_every:
            on_first_process(self._set_metrics_aside)
        on_first_process(lambda: self._workdir.replace_metrics(self._logged_lines))  # later steps are repeated
        on_first_process(self._write_tokenizer)
        on_first_process(lambda: self._workdir.write(CONFIG_NAME, to_toml(self._config).encode()))

    def _set_metrics_aside(self) -> None:
        kept = self._workdir.set_metrics_aside()
        log.warning(
            "%s has no checkpoint, so the run starts again; its metrics are now in %s", self._workdir.path, kept
        )

    def train(self) -> None:
        """Trains until the run is finished, then prints a summary.

        Raises Interrupted if a signal arrived, after saving the state, and RunError if the loss or its gradient was
        repeatedly not finite or a device has too little memory. Also raises the error of a checkpoint that could not be
        written.
        """
        if self._is_finished() and not self._validation_is_due():
            print(f"{self._workdir.path}: finished: {self._progress()}. Evaluate it with lingua-flax evaluate.")
            return
        self._recorder = self._new_recorder()
        self._started = time.monotonic() - self._clock.seconds
        closing = contextlib.closing
        with self._interruption.deferred(), closing(self._batches), closing(self._checkpoints), self._recorder:
            try:
                with explain_out_of_memory(self._network, self._config, self._mesh):
                    self._loop()
            except Interrupted as interrupted:
                self._log_all_steps()
                self._save()
                saved = f"step {self._clock.step} is saved" if self._clock.step else "no step was taken"
                message = f"{saved}; run the same command again to continue"
                raise Interrupted(interrupted.signal_number, message) from None
        log.info("compiled %s", self._compilations)
        if jax.process_count() > 1:
            gathered, per_batch = self._batches.rows_gathered, self._config.rows_per_batch
            log.info(
                "the first of %d processes gathered %d rows; each batch has %d",
                jax.process_count(), gathered, per_batch,
            )  # fmt: skip
        self._show_result()

    def _loop(self) -> None:
        self._batches.start()
        if self._validation_set and self._translator.pads_to_longest and jax.process_count() == 1:
            threading.Thread(target=self._compile_validation).start()  # while the step compiles: both are slow
        self._meter.restart()
        while True:
            if self._validation_is_due():
                self._log_all_steps()
                self._validate()
            if self._save_is_due():
                self._log_all_steps()
                self._save()
            if self._is_finished():
                return
            self._stop_if_signaled()
            self._checkpoints.check()
            self._take_step(next(self._batches))
            if self._log_is_due():
                self._log_finished_steps()

    # Steps.

    def _take_step(self, batch: TrainingBatch) -> None:
        clock = self._clock
        clock.step += 1
        clock.pairs += batch.pairs
        placed = put_rows_on_devices(batch.rows, self._mesh, self._local_rows, self._config.rows_per_batch)
        self._meter.about_to_dispatch()
        self._state, metrics = self._train_step(self._state, placed)
        if not self._has_taken_step:
            self._has_taken_step = True
            log.info("step %d started: %s", clock.step, self._compilations)
        self._pending_signals.append(process_max(self._interruption.signal_number))
        epoch = clock.pairs / self._prepared.pairs_per_epoch
        self._meter.dispatched(DispatchedStep(clock.step, metrics, epoch, batch.real_tokens))

    def _stop_if_signaled(self) -> None:
        """Raises Interrupted if a signal has arrived.

        Several processes have to stop at the same step, so they exchange their signals at every step. Each result is
        read only once STEPS_IN_FLIGHT more steps have been dispatched: reading it at once would wait for the device.
        """
        if jax.process_count() == 1:
            self._interruption.check()
        while len(self._pending_signals) > STEPS_IN_FLIGHT:
            if number := int(self._pending_signals.popleft()):
                raise Interrupted(number)

    # Logging.

    def _log_is_due(self) -> bool:
        """Returns whether the last finished step ends a log interval; steps in flight belong to the next one."""
        step = self._meter.last_finished
        return step is not None and step % self._config.training.log_every == 0

    def _log_all_steps(self) -> None:
        """Waits for the steps in flight, then writes the metrics of all steps not logged yet."""
        self._meter.wait()
        if self._meter.last_finished is not None:
            self._log_finished_steps()

    def _log_finished_steps(self) -> None:
        """Writes the metrics of the finished steps; raises RunError if MAX_SKIPPED steps in a row were not finite."""
        self._clock.seconds = time.monotonic() - self._started
        lines, pace = self._meter.read(self._clock.seconds)
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
                f"{self._workdir.checkpoints}"
            )

    def _new_recorder(self) -> Recorder | NoRecorder:
        if not is_first_process():
            return NoRecorder()
        corpus = self._prepared.corpus
        title = f"{self._workdir.path.name}: {corpus.name}, {corpus.source_language} to {corpus.target_language}"
        steps = self._prepared.num_steps, self._clock.step
        description = bleu_description(self._prepared.tokenizer)
        recorder = Recorder(self._workdir, title, self._config, *steps, self._logged_lines, description)
        recorder.ends_at(self._last_step())
        return recorder

    def _is_in_state(self, line: dict[str, Any]) -> bool:
        """Returns whether the current state includes the step or validation of a line of metrics.jsonl."""
        return bool(line["step"] <= (self._clock.validated if "validation_loss" in line else self._clock.step))

    # Validation.

    def _validation_is_due(self) -> bool:
        """Returns whether a validation is due at this step, including one that an earlier process left undone."""
        step, every = self._clock.step, self._config.training.eval_every
        return (
            bool(self._validation_set) and self._clock.validated != step and (step % every == 0 or self._is_finished())
        )

    def _validate(self) -> None:
        clock, started = self._clock, time.monotonic()
        translator = dataclasses.replace(self._translator, params=self._gathered_params())
        result = validate(translator, self._validation_set, self._stop_validation_if_signaled)
        clock.validated = clock.step
        best = clock.best_bleu is None or result.bleu > clock.best_bleu
        if best:
            clock.best_bleu, clock.best_step, clock.validations_since_best = result.bleu, clock.step, 0
        else:
            clock.validations_since_best += 1
        self._recorder.validation(clock.step, result, time.monotonic() - started, best=best)
        self._decay_if_patience_ended()
        self._meter.restart()

    def _compile_validation(self) -> None:
        shardings = param_shardings(self._network, self._mesh, gathered=True)
        params = sharded_shapes(self._network.params, shardings)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the validation itself will report the error
            warm_up(dataclasses.replace(self._translator, params=params), self._validation_set)

    def _gathered_params(self) -> Any:
        """Returns the parameters to translate with, gathered along "fsdp" once instead of at every decoding step."""
        params = self._state.params_to_use
        return params if self._mesh.shape["fsdp"] == 1 else self._gather(params)

    def _stop_validation_if_signaled(self, _: int) -> None:
        if number := int(process_max(self._interruption.signal_number)):
            raise Interrupted(number)

    # Saving and resuming.

    def _save_is_due(self) -> bool:
        step, every = self._clock.step, self._config.training.checkpoint_every
        return step > 0 and (step % every == 0 or self._clock.best_step == step or self._is_finished())

    def _save(self) -> None:
        """Saves the current state unless no step was taken or the newest checkpoint already holds it."""
        version = (self._clock.step, self._clock.validated)
        if self._saved_version == version or not self._clock.step:
            return
        on_first_process(self._workdir.sync_metrics)
        record = {
            "format": RECORD_FORMAT,
            "version": VERSION,
            "data": self._batches.state(),
            "clock": dataclasses.asdict(self._clock),
            "fingerprints": self._prepared.fingerprints,
            "config": as_json(self._config),
            "num_steps": self._prepared.num_steps,
        }
        items = checkpoint_items(self._state)
        self._checkpoints.save(self._clock.step, *items, record, self._clock.best_step)
        self._saved_version = version

    def _write_tokenizer(self) -> None:
        prepared, path = self._prepared, self._workdir.path
        names = [file.name for file in model_paths(path, joint=self._config.tokenizer.joint)]
        for name, model in zip(names, prepared.tokenizer_models, strict=True):
            self._workdir.write(name, model)

    def _initial_state(self, inherited: dict[str, Any]) -> TrainState:
        """Returns the state before the first step, with parameters copied from another run; runs under jit."""
        key = jax.random.key(self._config.training.seed)
        params = replace_params(initial_params(self._config.model, *self._vocab_sizes, key), inherited)
        return initial_state(params, self._config)

    def _fresh_state(self) -> TrainState:
        return jax.jit(self._initial_state, out_shardings=self._state_shardings)(self._prepared.inherited)

    def _restored_state(self) -> TrainState | None:
        """Returns the state of the newest intact checkpoint, if any, and restores the data position and the clock."""
        template = jax.eval_shape(self._initial_state, self._prepared.inherited)
        checkpoint = self._checkpoints.restore_newest(*checkpoint_items(template), self._check_unchanged)
        if checkpoint is None:
            return None
        params, training, record = checkpoint
        self._batches.restore(record["data"])
        self._clock = Progress(**record["clock"])
        if self._prepared.num_steps > record["num_steps"]:
            # Extending a run resets its patience.
            self._clock.validations_since_best, self._clock.decay_start = 0, None
        self._saved_version = (self._clock.step, self._clock.validated)
        if not self._is_finished():
            log.info("resuming from step %d", self._clock.step)
            self._warn_of_changed_schedule(record["num_steps"])
        shardings = self._state_shardings._replace(decay=None)
        return put_on_devices(state_from_checkpoint_items(params, training), shardings)

    def _check_unchanged(self, record: dict[str, Any]) -> None:
        """Raises UserError if a checkpoint's record does not match the config, corpora and tokenizer of this run."""
        saved, current, path = record["fingerprints"], self._prepared.fingerprints, self._workdir.path
        check_format(record, path)
        if differences := refused_changes(record["config"], self._config, f"in checkpoint {record['step']}"):
            raise UserError(
                f"{path}: its checkpoints were made with a different config: {'; '.join(differences)}. "
                f"Restore the old values in {CONFIG_NAME}, or choose another --workdir"
            )
        if changed := [name for name in saved if saved[name] != current.get(name)]:
            raise UserError(
                f"{path}: its checkpoints were made with a different {' and a different '.join(changed)} "
                "(the content differs); restore the original files, or choose another --workdir"
            )

    def _warn_of_changed_schedule(self, num_steps: int) -> None:
        schedule, now = self._config.optimizer.schedule, self._prepared.num_steps
        if (schedule == "cosine" or (schedule == "wsd" and not self._clock.decay_start)) and num_steps != now:
            log.warning(
                "the %s schedule depends on the number of steps, %d when this checkpoint was saved and now %d: the "
                "learning rates change from here on", schedule, num_steps, now,
            )  # fmt: skip

    # Finishing.

    def _is_finished(self) -> bool:
        return self._clock.step >= self._last_step()

    def _last_step(self) -> int:
        """Returns the step at which the run ends, as far as it is known now."""
        decay, num_steps = self._decay(), self._prepared.num_steps
        if decay:
            return min(decay.end, num_steps)
        return self._clock.step if self._patience_ended() else num_steps

    def _patience_ended(self) -> bool:
        return 0 < self._config.training.patience <= self._clock.validations_since_best

    def _decay(self) -> Decay | None:
        """Returns the decay of the "wsd" schedule, as far as it is known now; None for another schedule."""
        options, start = self._config.optimizer, self._clock.decay_start
        if options.schedule != "wsd":
            return None
        return Decay.scheduled(options, self._prepared.num_steps) if start is None else Decay.after(options, start)

    def _decay_if_patience_ended(self) -> None:
        clock, decay = self._clock, self._decay()
        if decay and clock.decay_start is None and self._patience_ended() and clock.step < decay.start:
            clock.decay_start = clock.step
            self._set_decay()
            end = self._last_step()
            self._recorder.ends_at(end)
            log.info("patience is exhausted: the learning rate decays from here on, and the run ends at step %d", end)

    def _set_decay(self) -> None:
        if decay := self._decay():
            placed = put_on_devices(np.array(decay, np.int32), replicated(self._mesh))
            self._state = self._state._replace(decay=placed)

    def _progress(self) -> str:
        clock = self._clock
        early = ", stopped early" if clock.step < self._prepared.num_steps else ""
        best = f", best validation BLEU {clock.best_bleu:.2f} at step {clock.best_step}" if clock.best_step else ""
        return f"{self._steps_taken()} steps{early}{best}"

    def _steps_taken(self) -> str:
        """Returns the number of steps, which may exceed the number now asked for."""
        taken, wanted = self._clock.step, self._prepared.num_steps
        return f"{taken:,} of {wanted:,}" if taken <= wanted else f"{taken:,} (more than the {wanted:,} asked for)"

    def _show_result(self) -> None:
        clock = self._clock
        rows = {
            "steps": self._steps_taken(),
            "epochs": f"{clock.pairs / self._prepared.pairs_per_epoch:.1f}",
            "training time": f"{clock.seconds / 60:.1f} minutes",
            "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(self._state.params)):,}",
            "steps skipped": f"{int(self._state.skipped)}",  # replicated: a process that was stopped need not answer
        }
        if clock.best_step:
            description = bleu_description(self._prepared.tokenizer)
            rows["best validation BLEU"] = f"{clock.best_bleu:.2f} at step {clock.best_step:,} ({description})"
        show_table(str(self._workdir.path), rows)
