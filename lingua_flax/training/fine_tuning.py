"""Initialization from the parameters of another run: selects those that fit and logs those that do not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.host.errors import UserError
from lingua_flax.model.parameters import params_by_name
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import Config
from lingua_flax.translation.translator import Translator

EMBEDDING_NAMES = ("source_embedding", "target_embedding", "output_embedding")  # one row per piece
log = logging.getLogger(__name__)


def matching_params(origin: Path, config: Config, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the parameters of another run's best checkpoint that fit into the network of the config, by path.

    An array fits if the network has an array of the same path and shape. Embeddings also require the same tokenizer,
    since the rows of a different vocabulary belong to different pieces. Which arrays were inherited is logged. Raises
    UserError if the run or its checkpoint is missing or damaged, or if no matrix fits.
    """
    translator = Translator.load(origin, devices=config.devices)
    available = params_by_name(gather_to_host(translator.params))
    wanted = params_by_name(structure(config.model, tokenizer.source_vocab_size, tokenizer.target_vocab_size).params)
    same_vocabulary = translator.tokenizer.fingerprint == tokenizer.fingerprint
    inherited, reasons = {}, {}  # reasons: why each of the other arrays is not inherited
    for name, leaf in wanted.items():
        if name not in available:
            reasons[name] = "not in that run"
        elif name.partition(".")[0] in EMBEDDING_NAMES and not same_vocabulary:
            reasons[name] = "different vocabulary"
        elif available[name].shape != leaf.shape:
            reasons[name] = "different shape"
        else:
            inherited[name] = np.asarray(available[name])
    if not any(
        leaf.ndim > 1 for leaf in inherited.values()
    ):  # a few biases that happen to fit are not worth inheriting
        raise UserError(f"{origin}: none of its matrices fits into this network; see [model] in its config.toml")
    num_inherited, num_wanted = (sum(leaf.size for leaf in arrays.values()) for arrays in (inherited, wanted))
    log.info(
        "%d of %d arrays (%s of %s parameters) are taken from %s, step %s; optimizer, schedule and data start afresh",
        len(inherited), len(wanted), f"{num_inherited:,}", f"{num_wanted:,}", origin, f"{translator.step:,}",
    )  # fmt: skip
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name in reasons if reasons[name] == reason]
        log.info("  newly initialized (%s): %s", reason, _summarize(names))
    if unused := [name for name in available if name not in wanted]:
        log.info("  unused (not in this network): %s", _summarize(unused))
    return inherited


def _summarize(names: Sequence[str]) -> str:
    """Groups the names by layer or module, for example "encoder.0 (3 arrays), output_embedding"."""
    groups: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        group = ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdecimal() else parts[0]
        groups[group] = groups.get(group, 0) + 1
    return ", ".join(name if count == 1 else f"{name} ({count} arrays)" for name, count in groups.items())
