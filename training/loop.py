"""The training run: step, log, validate, save, until the end or a signal."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from typing import Any

import jax
from jax.sharding import Mesh

from data.tokenizer import model_paths
from data.training_batches import TrainingBatch
from devices.compilation import Compilations
from devices.mesh import check_divides_vocabularies
from devices.platform import compute_dtype, pads_to_longest
from devices.processes import (
    check_equal_on_all_processes,
    gather_to_host,
    is_first_process,
    on_first_process,
    process_max,
)
from devices.sharding import local_rows, put_on_devices, put_rows_on_devices, sharded_shapes
from host.errors import Interrupted, RunError, UserError
from host.interruption import Interruption
from model.transformer import initial_params, structure
from options.config_files import CONFIG_NAME, as_json, config_digest, refused_changes, to_toml
from runs.checkpoint import Checkpoints
from runs.workdir import Workdir
from training.device_memory import explain_out_of_memory
from training.fast_attention import fast_attention
from training.fine_tuning import replace_params
from training.preparation import Preparation
from training.recorder import NoRecorder, Recorder, show_table
from training.step import (
    TrainState,
    checkpoint_items,
    initial_state,
    make_train_step,
    param_shardings,
    state_of_items,
    state_shardings,
)
from training.step_meter import STEPS_IN_FLIGHT, DispatchedStep, StepMeter
from training.validation import ValidationSet, bleu_description, validate, warm_up
from translation.translator import Translator

FORMAT = 2  # of a checkpoint's record: raise it when a run can no longer go on from an older one
MAX_SKIPPED = 3  # steps in a row that may fail to be finite
log = logging.getLogger(__name__)


@dataclasses.dataclass
class Clock:
    """What a run knows beside its arrays; saved with every checkpoint."""

    step: int = 0
    seconds: float = 0.0  # of training, over all processes that took part
    pairs: int = 0  # sentence pairs seen
    validated: int = 0  # the last step with a validation
    best_bleu: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0


class Run:
    """One training run in its workdir: `open` it, then `train`."""

    def __init__(
        self,
        prepared: Preparation,
        mesh: Mesh,
        workdir: Workdir,
        interruption: Interruption,
        compilations: Compilations,
    ):
        """Reads and writes nothing.

        Raises:
          UserError: the mesh does not divide the vocabularies, or the processes of the run do not agree.
        """
        config, tokenizer = prepared.config, prepared.tokenizer
        self._config = config
        self._prepared = prepared
        self._workdir = workdir
        self._interruption = interruption
        self._compilations = compilations
        self._mesh = mesh
        self._sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        check_divides_vocabularies(mesh, self._sizes)
        for what, digest in {"config": config_digest(config), **prepared.fingerprints}.items():
            check_equal_on_all_processes(what, digest)
        dtype = compute_dtype(config.devices.precision, mesh)
        fast = fast_attention(config, mesh)
        log.info("attention: %s", fast or "plain")
        self._network = structure(config.model, *self._sizes, dtype, fast)
        self._train_step = make_train_step(self._network, config, prepared.num_steps, self._mesh)
        self._places = state_shardings(self._network, config, mesh)
        whole = param_shardings(self._network, self._mesh, gathered=True)
        self._gathered = jax.jit(lambda params: params, out_shardings=whole)
        plain = structure(config.model, *self._sizes, dtype) if fast else self._network
        to_longest = pads_to_longest(config.devices.padding, mesh)
        self._translator = Translator(
            plain.graphdef, None, tokenizer, config.model, mesh=mesh, pads_to_longest=to_longest
        )
        self._local_rows = local_rows(self._mesh, config.rows_per_batch)
        self._batches = prepared.batches(self._local_rows)
        self._validation_set = ValidationSet.of(prepared.validation_pairs(), tokenizer)
        self._clock = Clock()
        self._meter = StepMeter(compilations)
        self._saved: tuple[int, int] | None = None  # step and last validation of the newest checkpoint
        self._signals: deque[jax.Array | int] = deque()
        self._is_under_way = False  # the first step of this process

    # The run as a whole.

    def open(self) -> None:
        """Makes the workdir, or finds what was reached in it, and puts the state on the devices.

        Raises:
          UserError: another process trains there, or its metrics or checkpoints are damaged or those of another run.
        """
        on_first_process(self._workdir.create)
        metrics = self._workdir.read_metrics()  # not before the lock is held: a run that ends just now adds to them
        on_first_process(self._write_tokenizer)
        self._checkpoints = Checkpoints(self._workdir.checkpoints, self._config.training.keep_checkpoints)
        with explain_out_of_memory(self._network, self._config, self._mesh):
            self._state = self._restored_state() or self._fresh_state()
        self._logged = list(filter(self._is_reached, metrics))
        on_first_process(lambda: self._workdir.replace_metrics(self._logged))  # what came after them will come again
        on_first_process(lambda: self._workdir.write(CONFIG_NAME, to_toml(self._config).encode()))

    def train(self) -> None:
        """Trains to the end, and shows what was reached.

        Raises:
          Interrupted: a signal came; the state is saved.
          RunError: the loss stopped being finite, or a checkpoint could not be written.
        """
        if self._is_finished() and not self._validation_is_due():
            print(f"{self._workdir.path}: finished: {self._reached()}. Evaluate it with evaluate.py.")
            return
        self._recorder = self._new_recorder()
        self._started = time.monotonic() - self._clock.seconds
        closing = contextlib.closing
        with self._interruption.deferred(), closing(self._batches), closing(self._checkpoints), self._recorder:
            try:
                with explain_out_of_memory(self._network, self._config, self._mesh):
                    self._loop()
            except Interrupted as interrupted:
                self._log_steps()
                self._save()
                saved = f"step {self._clock.step} is saved" if self._clock.step else "no step was taken yet"
                message = f"{saved}; the same command goes on from there"
                raise Interrupted(interrupted.signal_number, message) from None
        log.info("compiled %s", self._compilations)
        if jax.process_count() > 1:
            made, each = self._batches.rows_gathered, self._config.rows_per_batch
            log.info("the first of %d processes made %d rows; a batch has %d", jax.process_count(), made, each)
        self._show_result()

    def _loop(self) -> None:
        """Everything that happens in a run, in its order."""
        self._batches.start()
        if self._validation_set and self._translator.pads_to_longest and jax.process_count() == 1:
            threading.Thread(target=self._compile_validation).start()  # beside the step: both take long there
        self._meter.restart()
        while True:
            if self._validation_is_due():
                self._log_steps()
                self._validate()
            if self._save_is_due():
                self._log_steps()
                self._save()
            if self._is_finished():
                return
            self._stop_if_asked()
            self._checkpoints.check()
            self._take_step(next(self._batches))
            if self._log_is_due():
                self._log_done()

    # A step.

    def _take_step(self, batch: TrainingBatch) -> None:
        clock = self._clock
        clock.step += 1
        clock.pairs += batch.pairs
        placed = put_rows_on_devices(batch.rows, self._mesh, self._local_rows, self._config.rows_per_batch)
        self._meter.about_to_dispatch()
        self._state, metrics = self._train_step(self._state, placed)
        if not self._is_under_way:
            self._is_under_way = True
            log.info("step %d is under way: %s", clock.step, self._compilations)
        self._signals.append(process_max(self._interruption.signal_number))
        epoch = clock.pairs / self._prepared.pairs_per_epoch
        self._meter.dispatched(DispatchedStep(clock.step, metrics, epoch, batch.real_tokens))

    def _stop_if_asked(self) -> None:
        """Raises Interrupted once a signal has come.

        With several processes all have to stop at the same step, so each asks the others at every step and reads the
        answer when that step is behind it: at once it would have to wait for the device.
        """
        if jax.process_count() == 1:
            self._interruption.check()
        while len(self._signals) > STEPS_IN_FLIGHT:
            if number := int(self._signals.popleft()):
                raise Interrupted(number)

    # Logging.

    def _log_is_due(self) -> bool:
        """Whether the last step of a progress line is done; those in flight come with the next one."""
        done = self._meter.last_done
        return done is not None and done % self._config.training.log_every == 0

    def _log_steps(self) -> None:
        """Writes the metrics of all steps taken."""
        self._meter.wait()
        if self._meter.last_done is not None:
            self._log_done()

    def _log_done(self) -> None:
        """Writes the metrics of the steps that are done; stops the run where they are not finite."""
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
                "or set optimizer.clip_norm, in a new --workdir; the last good checkpoint stays in "
                f"{self._workdir.checkpoints}"
            )

    def _new_recorder(self) -> Recorder | NoRecorder:
        if not is_first_process():
            return NoRecorder()
        corpus = self._prepared.corpus
        title = f"{self._workdir.path.name}: {corpus.name}, {corpus.source_language} to {corpus.target_language}"
        steps = self._prepared.num_steps, self._clock.step
        kind = bleu_description(self._prepared.tokenizer)
        return Recorder(self._workdir, title, self._config, *steps, self._logged, kind)

    def _is_reached(self, line: dict[str, Any]) -> bool:
        """Whether a line of metrics.jsonl is of a step, or a validation, that the state has behind it."""
        return bool(line["step"] <= (self._clock.validated if "validation_loss" in line else self._clock.step))

    # Validation.

    def _validation_is_due(self) -> bool:
        """Also where an earlier process was stopped before it could make it."""
        step, every = self._clock.step, self._config.training.eval_every
        return (
            bool(self._validation_set) and self._clock.validated != step and (step % every == 0 or self._is_finished())
        )

    def _validate(self) -> None:
        clock, started = self._clock, time.monotonic()
        translator = dataclasses.replace(self._translator, params=self._whole_params())
        found = validate(translator, self._validation_set, self._stop_validation_if_asked)
        clock.validated = clock.step
        best = clock.best_bleu is None or found.bleu > clock.best_bleu
        if best:
            clock.best_bleu, clock.best_step, clock.validations_since_best = found.bleu, clock.step, 0
        else:
            clock.validations_since_best += 1
        self._recorder.validation(clock.step, found, time.monotonic() - started, best=best)
        self._meter.restart()

    def _compile_validation(self) -> None:
        places = param_shardings(self._network, self._mesh, gathered=True)
        params = sharded_shapes(self._network.params, places)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # validation will meet it too, and say what it is
            warm_up(dataclasses.replace(self._translator, params=params), self._validation_set)

    def _whole_params(self) -> Any:
        """The parameters to translate with, gathered along "fsdp": else every step of decoding would do so."""
        params = self._state.params_to_use
        return params if self._mesh.shape["fsdp"] == 1 else self._gathered(params)

    def _stop_validation_if_asked(self, _: int) -> None:
        if number := int(process_max(self._interruption.signal_number)):
            raise Interrupted(number)

    # Saving, and going on.

    def _save_is_due(self) -> bool:
        step, every = self._clock.step, self._config.training.checkpoint_every
        return step > 0 and (step % every == 0 or self._clock.best_step == step or self._is_finished())

    def _save(self) -> None:
        """Saves what was reached, unless the newest checkpoint has it already."""
        version = (self._clock.step, self._clock.validated)
        if self._saved == version or not self._clock.step:
            return
        on_first_process(self._workdir.sync_metrics)
        record = {
            "format": FORMAT,
            "data": self._batches.state(),
            "clock": dataclasses.asdict(self._clock),
            "fingerprints": self._prepared.fingerprints,
            "config": as_json(self._config),
            "num_steps": self._prepared.num_steps,
        }
        items = checkpoint_items(self._state)
        self._checkpoints.save(self._clock.step, *items, record, self._clock.best_step)
        self._saved = version

    def _write_tokenizer(self) -> None:
        prepared, path = self._prepared, self._workdir.path
        names = [file.name for file in model_paths(path, joint=self._config.tokenizer.joint)]
        for name, model in zip(names, prepared.tokenizer_models, strict=True):
            self._workdir.write(name, model)

    def _initial_state(self, taken: dict[str, Any]) -> TrainState:
        """The state before the first step, with parameters that were taken from another run; to be compiled."""
        key = jax.random.key(self._config.training.seed)
        params = replace_params(initial_params(self._config.model, *self._sizes, key), taken)
        return initial_state(params, self._config)

    def _fresh_state(self) -> TrainState:
        return jax.jit(self._initial_state, out_shardings=self._places)(self._prepared.taken)

    def _restored_state(self) -> TrainState | None:
        """The newest sound checkpoint's state, with data and clock put where they were; None where there is none."""
        template = jax.eval_shape(self._initial_state, self._prepared.taken)
        found = self._checkpoints.restore_newest(*checkpoint_items(template), self._check_unchanged)
        if found is None:
            return None
        params, training, record = found
        self._batches.restore(record["data"])
        self._clock = Clock(**record["clock"])
        if self._prepared.num_steps > record["num_steps"]:
            self._clock.validations_since_best = 0  # a longer run is patient anew
        self._saved = (self._clock.step, self._clock.validated)
        if not self._is_finished():
            log.info("going on from step %d", self._clock.step)
            self._warn_of_another_schedule(record["num_steps"])
        return put_on_devices(state_of_items(params, training), self._places)

    def _check_unchanged(self, record: dict[str, Any]) -> None:
        """Raises UserError where a checkpoint's record is not of this config, corpus and tokenizer."""
        saved, wanted, path = record["fingerprints"], self._prepared.fingerprints, self._workdir.path
        if record.get("format") != FORMAT:
            raise UserError(
                f"{path}: its checkpoints were written by another version of this program, which alone can go on with "
                "this run; it can still be translated with. Choose another --workdir to train anew"
            )
        if differences := refused_changes(record["config"], self._config, f"in checkpoint {record['step']}"):
            raise UserError(
                f"{path}: its checkpoints were made with another config: {'; '.join(differences)}. "
                f"Give {CONFIG_NAME} the old values back, or choose another --workdir"
            )
        if changed := [name for name in saved if saved[name] != wanted.get(name)]:
            raise UserError(
                f"{path}: its checkpoints were made with another {' and another '.join(changed)} "
                "(the content differs); give the old files back, or choose another --workdir"
            )

    def _warn_of_another_schedule(self, num_steps: int) -> None:
        schedule, now = self._config.optimizer.schedule, self._prepared.num_steps
        if schedule == "cosine" and num_steps != now:
            log.warning(
                "the %s schedule depends on the number of steps, %d when this checkpoint was saved and now %d: the "
                "learning rate is another one from here on", schedule, num_steps, now,
            )  # fmt: skip

    # The end.

    def _is_finished(self) -> bool:
        clock, patience = self._clock, self._config.training.patience
        return clock.step >= self._prepared.num_steps or 0 < patience <= clock.validations_since_best

    def _reached(self) -> str:
        clock = self._clock
        early = ", stopped early" if clock.step < self._prepared.num_steps else ""
        best = f", best validation BLEU {clock.best_bleu:.2f} at step {clock.best_step}" if clock.best_step else ""
        return f"{clock.step:,} of {self._prepared.num_steps:,} steps{early}{best}"

    def _show_result(self) -> None:
        clock = self._clock
        rows = {
            "steps": f"{clock.step:,} of {self._prepared.num_steps:,}",
            "epochs": f"{clock.pairs / self._prepared.pairs_per_epoch:.1f}",
            "training time": f"{clock.seconds / 60:.1f} minutes",
            "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(self._state.params)):,}",
            "steps skipped": f"{int(gather_to_host(self._state.skipped))}",
        }
        if clock.best_step:
            kind = bleu_description(self._prepared.tokenizer)
            rows["best validation BLEU"] = f"{clock.best_bleu:.2f} at step {clock.best_step:,} ({kind})"
        show_table(str(self._workdir.path), rows)
