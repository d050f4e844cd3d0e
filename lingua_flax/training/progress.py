"""How far a run has come, and what follows from that and its config: when it validates, saves, decays and ends."""

from typing import NamedTuple, Self

from lingua_flax.options.schema import Config
from lingua_flax.training.optimizer import Decay


class Progress(NamedTuple):
    """The progress of a run, saved as JSON with every checkpoint."""

    step: int = 0
    seconds: float = 0.0  # of training so far, including that of the earlier processes of a resumed run
    pairs: int = 0
    validated: int = 0  # the last step at which the model was validated
    validation_set: str = ""  # digest of the validation set, with which all of best_* were computed
    best_chrf: float = 0.0  # in percent
    best_bleu: float = 0.0
    best_step: int | None = None
    validations_since_best: int = 0
    decay_start: int | None = None  # the step at which the end of patience began the decay of the "wsd" schedule

    def after_step(self, pairs: int) -> Self:
        return self._replace(step=self.step + 1, pairs=self.pairs + pairs)

    def after_validation(self, chrf: float, bleu: float) -> Self:
        """Returns the progress after a validation.

        chrF and BLEU rank together. BLEU of a weak network is near 0, where chrF has a slope, and their sum is steadier
        than either; on texts unlike the training corpus, the loss rises while translations become better.
        """
        new = self._replace(validated=self.step)
        if self.best_step is None or chrf + bleu > self.best_chrf + self.best_bleu:
            return new._replace(best_chrf=chrf, best_bleu=bleu, best_step=self.step, validations_since_best=0)
        return new._replace(validations_since_best=self.validations_since_best + 1)

    def with_validation_set(self, digest: str) -> Self:
        """Returns the progress of a run that validates on this set: what was best on another one is not compared."""
        if digest == self.validation_set:
            return self
        new = self._replace(validation_set=digest, validations_since_best=0)
        return new._replace(best_step=None)

    @property
    def best(self) -> str:
        """The best validation in words, such as "chrF 56.25, BLEU 31.25"; "" if there was none."""
        return "" if self.best_step is None else f"chrF {self.best_chrf:.2f}, BLEU {self.best_bleu:.2f}"

    def with_new_patience(self) -> Self:
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
        return is_due or self.is_finished(progress)

    def steps_taken(self, progress: Progress) -> str:
        """Returns the number of steps, which may exceed the number now asked for."""
        taken, wanted = progress.step, self.num_steps
        return f"{taken:,} of {wanted:,}" if taken <= wanted else f"{taken:,} (more than the {wanted:,} asked for)"

    def summary(self, progress: Progress) -> str:
        """Returns the progress in words."""
        early = ", stopped early" if progress.step < self.num_steps else ""
        best = f", best validation {progress.best} at step {progress.best_step}" if progress.best else ""
        return f"{self.steps_taken(progress)} step{'s' * (self.num_steps != 1)}{early}{best}"
