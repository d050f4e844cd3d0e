"""What a checkpoint says about its run, and what of it must be the same when the run is resumed."""

import logging
from pathlib import Path
from typing import Any

from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import CONFIG_NAME, as_json, refused_changes
from lingua_flax.options.schema import FALLING_SCHEDULES
from lingua_flax.runs.checkpoint import METADATA_FORMAT, check_format
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.progress import Progress

log = logging.getLogger(__name__)


def checkpoint_metadata(
    prepared: Preparation, progress: Progress, data_position: dict[str, int], attention: str
) -> dict[str, Any]:
    """Returns the metadata of a checkpoint, as JSON."""
    return {
        "format": METADATA_FORMAT,
        "version": VERSION,
        "data": data_position,
        "progress": progress._asdict(),
        "data_digests": prepared.data_digests,
        "several_sentences": prepared.several_sentences,
        "config": as_json(prepared.config),
        "num_steps": prepared.num_steps,
        "attention": attention,
    }


def check_unchanged(metadata: dict[str, Any], prepared: Preparation, workdir: Path) -> None:
    """Raises UserError if a checkpoint was made with another format, config, corpus or tokenizer than is prepared."""
    check_format(metadata, workdir)
    where = f"in checkpoint {metadata['step']}"
    if differences := refused_changes(metadata["config"], prepared.config, where):
        raise UserError(
            f"{workdir}: its checkpoints were made with a different config: {'; '.join(differences)}. "
            f"Restore the old values in {CONFIG_NAME}, or choose another --workdir"
        )
    saved, current = metadata["data_digests"], prepared.data_digests
    if changed := [name for name in saved if saved[name] != current.get(name)]:
        raise UserError(
            f"{workdir}: its checkpoints were made with a different {' and a different '.join(changed)} "
            "(the content differs); restore the original files, or choose another --workdir. With --init-from "
            f"{workdir}, that run goes on from this one, and holds the same sentences out of a corpus that has grown"
        )


def warn_of_changes(metadata: dict[str, Any], prepared: Preparation, progress: Progress, attention: str) -> None:
    """Warns if the run goes on from the checkpoint in another way than it would have without an interruption."""
    schedule, before, now = prepared.config.optimizer.schedule, metadata["num_steps"], prepared.num_steps
    if before != now and schedule in FALLING_SCHEDULES and not progress.decay_start:
        steps = f"{before} when this checkpoint was saved and now {now}"
        effect = "the learning rates change from here on"
        log.warning("the %s schedule depends on the number of steps, %s: %s", schedule, steps, effect)
    if metadata["attention"] != attention:
        effect = "the next losses differ from those of an uninterrupted run in their last digits"
        message = "attention was %s until this checkpoint and is now %s: %s"
        log.warning(message, metadata["attention"], attention, effect)
