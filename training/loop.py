"""The training run: resume, step, validate, save, until the end or a signal."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections import deque
from typing import Any

import jax
import numpy as np

from configs.errors import Interrupted, RunError, UserError
from configs.loading import CONFIG_NAME, as_json, config_digest, refused_differences, to_toml
from data.tokenizer import model_paths
from model.transformer import initial_params, structure
from runtime.checkpoint import Checkpoints
from runtime.compilation import Compilations
from runtime.devices import check_divides, compute_dtype, make_mesh, on_devices, place_rows, rows_kept
from runtime.interruption import Interruption
from runtime.processes import by_the_first, check_alike, fetch, highest, is_first
from runtime.workdir import Workdir
from training.fine_tuning import with_taken
from training.footprint import explaining_memory
from training.preparation import Preparation
from training.recorder import NoRecorder, Pace, Recorder, show_table
from training.step import (
    StepMetrics,
    TrainState,
    initial_state,
    make_train_step,
    param_shardings,
    state_shardings,
)
from training.validation import kind_of_bleu, validate
from translation.translator import Translator

MOST_SKIPPED = 3  # steps in a row that may fail to be finite
STEPS_IN_FLIGHT = 2  # the device is never idle, and a signal never waits for a long queue
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


@dataclasses.dataclass(frozen=True)
class _TakenStep:
    """A step whose metrics are still on the device, with what the host knows of its batch."""

    number: int
    metrics: StepMetrics
    epoch: float
    real_tokens: float


class Run:
    """One training run in its workdir."""

    def __init__(self, prepared: Preparation, workdir: Workdir, interruption: Interruption, compilations: Compilations):
        config, tokenizer = prepared.config, prepared.tokenizer
        self._config = config
        self._prepared = prepared
        self._interruption = interruption
        self._compilations = compilations
        self._mesh = make_mesh(config.devices.mesh)
        self._sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        check_divides(self._mesh, config, self._sizes)
        for what, digest in {"config": config_digest(config), **prepared.fingerprints}.items():
            check_alike(what, digest)
        self._network = structure(config.model, *self._sizes, compute_dtype(config.devices.precision, self._mesh))
        whole = param_shardings(self._network, self._mesh, gathered=True)
        self._gathered = jax.jit(lambda params: params, out_shardings=whole)
        self._train_step = make_train_step(self._network, config, prepared.num_steps, self._mesh)
        self._translator = Translator(self._network.graphdef, None, tokenizer, config.model, mesh=self._mesh)
        self._workdir = workdir
        by_the_first(self._create_workdir)
        self._checkpoints = Checkpoints(self._workdir.checkpoints, config.training.keep_checkpoints)
        self._kept = rows_kept(self._mesh, config.rows_per_batch)
        self._batches = prepared.batches(self._kept)
        self._validation_pairs = prepared.validation_pairs()
        self._clock = Clock()
        self._saved: tuple[int, int] | None = None  # step and last validation of the newest checkpoint
        self._under_way = False  # the first step of this process
        self._taken: list[_TakenStep] = []
        self._signals: deque[jax.Array | int] = deque()
        with explaining_memory(self._network, config, self._mesh):
            self._state = self._first_state()
        by_the_first(lambda: self._workdir.write(CONFIG_NAME, to_toml(config).encode()))

    def train(self) -> None:
        """Trains to the end, and shows what was reached.

        Raises:
          Interrupted: a signal came; the state is saved.
          RunError: the loss stopped being finite.
        """
        if self._finished() and not self._validation_is_due():
            print(f"{self._workdir.path}: finished: {self._reached()}. Evaluate it with evaluate.py.")
            return
        corpus, workdir = self._prepared.corpus, self._workdir
        title = f"{workdir.path.name}: {corpus.name}, {corpus.source_language} to {corpus.target_language}"
        recorder: Recorder | NoRecorder = NoRecorder()
        if is_first():
            recorder = Recorder(workdir, title, self._clock.step, self._prepared.num_steps, self._config)
        closing = contextlib.closing
        with self._interruption.deferred(), closing(self._batches), closing(self._checkpoints), recorder:
            self._restart_interval()
            self._started = self._interval_start - self._clock.seconds
            try:
                with explaining_memory(self._network, self._config, self._mesh):
                    self._go(recorder)
            except Interrupted as interrupted:
                self._write_taken(recorder)
                self._save()
                saved = f"step {self._clock.step} is saved" if self._clock.step else "no step was taken yet"
                message = f"{saved}; the same command goes on from there"
                raise Interrupted(interrupted.signal_number, message) from None
        log.info("compiled %s", self._compilations)
        self._show_result()

    def _create_workdir(self) -> None:
        prepared, path = self._prepared, self._workdir.path
        self._workdir.create()
        names = [file.name for file in model_paths(path, joint=self._config.tokenizer.joint)]
        for name, model in zip(names, prepared.tokenizer_models, strict=True):
            self._workdir.write(name, model)

    def _go(self, recorder: Recorder | NoRecorder) -> None:
        training = self._config.training
        while True:
            step = self._clock.step
            if self._validation_is_due():
                self._write_taken(recorder)
                self._validate(recorder)
            done = self._finished()
            if step and (done or step % training.checkpoint_every == 0 or self._clock.best_step == step):
                self._write_taken(recorder)
                self._save()
            if done:
                return
            self._stop_if_asked()
            self._take_step()
            if self._clock.step % training.log_every == 0:
                self._write_taken(recorder)

    def _take_step(self) -> None:
        batch = next(self._batches)
        self._clock.step += 1
        self._clock.pairs += batch.pairs
        placed = place_rows(batch.rows, self._mesh, self._kept, self._config.rows_per_batch)
        self._note_waiting()
        self._state, metrics = self._train_step(self._state, placed)
        self._seen_busy = time.monotonic()
        if not self._under_way:
            self._under_way = True
            log.info("step %d is under way: %s", self._clock.step, self._compilations)
        self._signals.append(highest(self._interruption.signal_number))
        epoch = self._clock.pairs / self._prepared.pairs_per_epoch
        self._taken.append(_TakenStep(self._clock.step, metrics, epoch, batch.real_tokens))
        if len(self._taken) > STEPS_IN_FLIGHT:
            jax.block_until_ready(self._taken[-1 - STEPS_IN_FLIGHT].metrics.loss)
            self._seen_busy = time.monotonic()

    def _note_waiting(self) -> None:
        """Adds up for how long, at most, the device has had nothing to do before the next step is given to it."""
        if not self._taken or self._taken[-1].metrics.loss.is_ready():  # type: ignore[attr-defined]
            self._waited += time.monotonic() - self._seen_busy

    def _restart_interval(self) -> None:
        """What is measured from here on belongs to the steps that are to come."""
        self._interval_start = self._seen_busy = time.monotonic()
        self._waited = 0.0

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

    def _write_taken(self, recorder: Recorder | NoRecorder) -> None:
        """Writes the metrics of the steps taken since the last time; stops the run where they are not finite."""
        if not self._taken:
            return
        fetched = jax.device_get([taken.metrics for taken in self._taken])
        self._clock.seconds = time.monotonic() - self._started
        elapsed = time.monotonic() - self._interval_start
        pace = Pace(
            sum(float(metrics.tokens) for metrics in fetched) / elapsed,
            float(np.mean([taken.real_tokens for taken in self._taken])),
            self._waited / elapsed,
            dataclasses.replace(self._compilations),
        )
        lines = [
            _metrics_line(taken, metrics, pace, self._clock.seconds)
            for taken, metrics in zip(self._taken, fetched, strict=True)
        ]
        failed = next((i for i, metrics in enumerate(fetched) if metrics.skipped_in_a_row >= MOST_SKIPPED), None)
        counted = lines if failed is None else lines[: failed + 1]
        recorder.steps(counted, pace)
        for line in counted:
            if line["skipped_in_a_row"]:
                log.warning("step %d skipped: its loss or gradient is not finite", line["step"])
        if failed is not None:
            raise RunError(self._diverged(lines[failed]))
        self._taken.clear()
        self._restart_interval()

    def _diverged(self, line: dict[str, Any]) -> str:
        return (
            f"step {line['step']}: the loss or its gradient was not finite for {MOST_SKIPPED} steps in a row, at "
            f"learning rate {line['learning_rate']:.2e}. Lower optimizer.peak_lr, raise optimizer.warmup_steps, or set "
            f"optimizer.clip_norm, in a new --workdir; the last good checkpoint stays in {self._workdir.checkpoints}"
        )

    def _validate(self, recorder: Recorder | NoRecorder) -> None:
        clock, started = self._clock, time.monotonic()
        translator = dataclasses.replace(self._translator, params=self._whole_params())
        found = validate(translator, self._validation_pairs, self._stop_validation_if_asked)
        clock.validated = clock.step
        best = clock.best_bleu is None or found.bleu > clock.best_bleu
        if best:
            clock.best_bleu, clock.best_step, clock.validations_since_best = found.bleu, clock.step, 0
        else:
            clock.validations_since_best += 1
        recorder.validation(clock.step, found, time.monotonic() - started, best=best)
        self._restart_interval()

    def _whole_params(self) -> Any:
        """The parameters to translate with, gathered along "fsdp": else every step of decoding would do so."""
        params = self._state.params_to_use
        return params if self._mesh.shape["fsdp"] == 1 else self._gathered(params)

    def _stop_validation_if_asked(self, _: int) -> None:
        if number := int(highest(self._interruption.signal_number)):
            raise Interrupted(number)

    def _validation_is_due(self) -> bool:
        """Also where an earlier process was stopped before it could make it."""
        step, every = self._clock.step, self._config.training.eval_every
        return (
            bool(self._validation_pairs) and self._clock.validated != step and (step % every == 0 or self._finished())
        )

    def _finished(self) -> bool:
        clock, patience = self._clock, self._config.training.patience
        return clock.step >= self._prepared.num_steps or 0 < patience <= clock.validations_since_best

    def _save(self) -> None:
        version = (self._clock.step, self._clock.validated)
        if self._saved == version or not self._clock.step:
            return
        record = {
            "data": self._batches.state(),
            "clock": dataclasses.asdict(self._clock),
            "fingerprints": self._prepared.fingerprints,
            "config": as_json(self._config),
            "num_steps": self._prepared.num_steps,
        }
        params, training = _items(self._state)
        self._checkpoints.save(self._clock.step, params, training, record, self._clock.best_step)
        self._saved = version

    def _first_state(self) -> TrainState:
        """The newest sound checkpoint's state, with data and clock put where it was; else a fresh one."""
        places = state_shardings(self._network, self._config, self._mesh)

        def initialize(taken: dict[str, Any]) -> TrainState:
            key = jax.random.key(self._config.training.seed)
            params = with_taken(initial_params(self._config.model, *self._sizes, key), taken)
            return initial_state(params, self._config)

        template = jax.eval_shape(initialize, self._prepared.taken)
        found = self._checkpoints.restore_newest(*_items(template), self._check_unchanged)
        if found is None:
            by_the_first(lambda: self._workdir.cut_metrics(0, 0))
            return jax.jit(initialize, out_shardings=places)(self._prepared.taken)
        params, training, record = found
        self._batches.restore(record["data"])
        self._clock = Clock(**record["clock"])
        if self._prepared.num_steps > record["num_steps"]:
            self._clock.validations_since_best = 0  # a longer run is patient anew
        self._saved = (self._clock.step, self._clock.validated)
        by_the_first(lambda: self._workdir.cut_metrics(self._clock.step, self._clock.validated))
        if not self._finished():
            log.info("going on from step %d", self._clock.step)
            self._warn_of_another_schedule(record["num_steps"])
        return on_devices(_state_of(params, training), places)

    def _check_unchanged(self, record: dict[str, Any]) -> None:
        """Raises UserError where a checkpoint's record is not of this config, corpus and tokenizer."""
        saved, wanted, path = record["fingerprints"], self._prepared.fingerprints, self._workdir.path
        if differences := refused_differences(record["config"], self._config, f"in checkpoint {record['step']}"):
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
            "steps skipped": f"{int(fetch(self._state.skipped))}",
        }
        if clock.best_step:
            kind = kind_of_bleu(lowercase=self._prepared.tokenizer.lowercase)
            rows["best validation BLEU"] = f"{clock.best_bleu:.2f} at step {clock.best_step:,} ({kind})"
        show_table(str(self._workdir.path), rows)


def _items(state: TrainState) -> tuple[Any, Any]:
    """A state as the two items of a checkpoint: the parameters to use, and what training needs beside them."""
    training = (state.optimizer, state.step, state.skipped, state.skipped_in_a_row)
    return state.params_to_use, training if state.average is None else (*training, state.params)


def _state_of(params: Any, training: Any) -> TrainState:
    """The state that _items was given."""
    optimizer, step, skipped, in_a_row, *own = training
    state = TrainState(params, optimizer, step, skipped, in_a_row)
    return state._replace(params=own[0], average=params) if own else state


def _metrics_line(taken: _TakenStep, metrics: StepMetrics, pace: Pace, seconds: float) -> dict[str, Any]:
    loss, norm = float(metrics.loss), float(metrics.gradient_norm)
    return {
        "step": taken.number,
        "loss": loss if math.isfinite(loss) else None,
        "gradient_norm": norm if math.isfinite(norm) else None,
        "learning_rate": float(metrics.learning_rate),
        "tokens": int(metrics.tokens),
        "batch": "".join(f"{int(word):08x}" for word in metrics.batch),
        "epoch": round(taken.epoch, 4),
        "real_tokens": round(taken.real_tokens, 4),
        "skipped_in_a_row": int(metrics.skipped_in_a_row),
        "tokens_per_second": round(pace.tokens_per_second, 1),
        "waiting": round(pace.waiting, 4),
        "programs_compiled": pace.compilations.programs,
        "compile_seconds": round(pace.compilations.seconds, 2),
        "seconds": round(seconds, 3),
    }
