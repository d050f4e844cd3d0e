"""The length and the warm-up of a run in steps, where the config has epochs and a share."""

import logging
import math
from pathlib import Path

from lingua_flax.data.training_data import TrainingData
from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted
from lingua_flax.options.config_files import CONFIG_NAME, read_workdir_config
from lingua_flax.options.schema import FALLING_SCHEDULES, MAX_COUNT, Config
from lingua_flax.training.optimizer import num_warmup_steps

log = logging.getLogger(__name__)


def steps_of_run(config: Config, data: TrainingData) -> int:
    """Returns training.num_steps, or the steps of training.num_epochs; raises UserError if they are too many."""
    epochs = config.training.num_epochs
    if config.training.num_steps is not None:
        return config.training.num_steps
    assert epochs is not None  # one of the two has a value
    steps = math.ceil(epochs * data.rows_per_epoch() / config.rows_per_batch)
    if steps > MAX_COUNT:
        excess = f"{steps:.2g} steps, more than the maximum of {MAX_COUNT:,}"
        raise UserError(f"training.num_epochs {epochs:g} amounts to {excess}; lower it")
    log.info("training for %g epoch%s: %s", epochs, "s" * (epochs != 1), counted(steps, "step"))
    return steps


def with_warmup_steps(config: Config, num_steps: int, workdir: Path) -> Config:
    """Returns the config with its warm-up in steps; raises UserError if the schedule does not allow that many.

    A share is replaced by the steps in the workdir's config, or by that share of num_steps if there is none.
    """
    optimizer = config.optimizer
    steps = computed = num_warmup_steps(optimizer, num_steps)
    if optimizer.warmup_share is not None and (workdir / CONFIG_NAME).exists():
        steps = num_warmup_steps(read_workdir_config(workdir).optimizer, num_steps)
    if steps != computed:
        now = f"optimizer.warmup_share {optimizer.warmup_share:g} would now be {computed}"
        log.info("warm-up stays at the %s with which this run was started; %s", counted(steps, "step"), now)
    if optimizer.schedule in FALLING_SCHEDULES and steps >= num_steps:
        limit = f"below the run's {counted(num_steps, 'step')} for the {optimizer.schedule} schedule"
        raise UserError(f"optimizer.warmup_steps must be {limit}, got {steps}")
    resolved = optimizer.model_copy(update={"warmup_steps": steps, "warmup_share": None})
    return config.model_copy(update={"optimizer": resolved})
