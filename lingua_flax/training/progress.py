"""How far a run has come, and what follows from that and its config: when it validates, saves, decays and ends."""

from __future__ import annotations

from typing import NamedTuple

from lingua_flax.options.schema import Config
from lingua_flax.training.optimizer import Decay


class Progress(NamedTuple):
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

    def after_step(self, pairs: int) -> Progress:
        return self._replace(step=self.step + 1, pairs=self.pairs + pairs)

    def after_validation(self, bleu: float) -> Progress:
        if self.best_bleu is None or bleu > self.best_bleu:
            return self._replace(validated=self.step, best_bleu=bleu, best_step=self.step, validations_since_best=0)
        return self._replace(validated=self.step, validations_since_best=self.validations_since_best + 1)

    def with_new_patience(self) -> Progress:
        """Returns the progress of a run that has been given more steps."""
        return self._replace(validations_since_best=0, decay_start=None)


class Plan(NamedTuple):
    """When a run of up to `num_steps` steps does what."""

    config: Config
    num_steps: int
    has_validation_set: bool

    def decay(self, progress: Progress) -> Decay | None:
        """Returns the decay of the "wsd" schedule, as far as it is known now; None for another schedule."""
        options, start = self.config.optimizer, progress.decay_start
        if options.schedule != "wsd":
            return None
        return Decay.scheduled(options, self.num_steps) if start is None else Decay.after(options, start)

    def last_step(self, progress: Progress) -> int:
        """Returns the step at which the run ends, as far as it is known now."""
        if decay := self.decay(progress):
            return min(decay.end, self.num_steps)
        return progress.step if self.patience_ended(progress) else self.num_steps

    def is_finished(self, progress: Progress) -> bool:
        return progress.step >= self.last_step(progress)

    def patience_ended(self, progress: Progress) -> bool:
        return 0 < self.config.training.patience <= progress.validations_since_best

    def decays_from_now_on(self, progress: Progress) -> bool:
        """Returns whether the end of patience begins the decay at this step, before it was due."""
        decay = self.decay(progress)
        starts = decay is not None and progress.decay_start is None and progress.step < decay.start
        return starts and self.patience_ended(progress)

    def validation_is_due(self, progress: Progress) -> bool:
        """Returns whether a validation is due at this step, including one that an earlier process left undone."""
        if not self.has_validation_set or progress.validated == progress.step:
            return False
        return progress.step % self.config.training.eval_every == 0 or self.is_finished(progress)

    def save_is_due(self, progress: Progress) -> bool:
        is_due = progress.step % self.config.training.checkpoint_every == 0 or progress.best_step == progress.step
        return progress.step > 0 and (is_due or self.is_finished(progress))

    def steps_taken(self, progress: Progress) -> str:
        """Returns the number of steps, which may exceed the number now asked for."""
        taken, wanted = progress.step, self.num_steps
        return f"{taken:,} of {wanted:,}" if taken <= wanted else f"{taken:,} (more than the {wanted:,} asked for)"

    def summary(self, progress: Progress) -> str:
        """Returns the progress in words."""
        early, bleu = ", stopped early" if progress.step < self.num_steps else "", progress.best_bleu
        best = "" if bleu is None else f", best validation BLEU {bleu:.2f} at step {progress.best_step}"
        return f"{self.steps_taken(progress)} steps{early}{best}"
