"""Initialization from the parameters of another run: selects those that fit and logs those that do not."""

import collections
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

OF_PIECES = ("source_embedding", "target_embedding", "output_embedding", "output_bias")  # one row per piece
log = logging.getLogger(__name__)


def matching_params(origin: Path, config: Config, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the parameters of another run's best checkpoint that fit into the network of the config, by path.

    They fit if path and shape are the same and, for what belongs to pieces, the tokenizer. Logs which ones. Raises
    UserError if the run or its checkpoint is missing or damaged, or if no matrix fits.
    """
    translator = Translator.load(origin, devices=config.devices)
    available = params_by_name(gather_to_host(translator.params))
    wanted = params_by_name(structure(config.model, tokenizer.source_vocab_size, tokenizer.target_vocab_size).params)
    same_vocabulary = translator.tokenizer.digest == tokenizer.digest
    inherited, others = {}, collections.defaultdict(list)  # others: names by the reason why they are not inherited
    for name, leaf in wanted.items():
        if name not in available:
            others["not in that run"].append(name)
        elif name.partition(".")[0] in OF_PIECES and not same_vocabulary:
            others["different vocabulary"].append(name)
        elif available[name].shape != leaf.shape:
            others["different shape"].append(name)
        else:
            inherited[name] = np.asarray(available[name])
    # A few biases that happen to fit are not worth inheriting.
    if not any(leaf.ndim > 1 for leaf in inherited.values()):
        raise UserError(f"{origin}: none of its matrices fits into this network; see [model] in its config.toml")
    taken, total = (sum(leaf.size for leaf in arrays.values()) for arrays in (inherited, wanted))
    counts = f"{len(inherited)} of {len(wanted)} arrays ({taken:,} of {total:,} parameters)"
    source = f"{origin}, step {translator.step:,}"
    log.info("%s are taken from %s; optimizer, schedule and data start afresh", counts, source)
    for reason, names in others.items():
        log.info("  newly initialized (%s): %s", reason, _summarize(names))
    if unused := [name for name in available if name not in wanted]:
        log.info("  unused (not in this network): %s", _summarize(unused))
    return inherited


def _summarize(names: Sequence[str]) -> str:
    """Groups the names by layer or module, for example "encoder.0 (3 arrays), output_embedding"."""
    groups: collections.Counter[str] = collections.Counter()
    for name in names:
        module, layer = f"{name}.".split(".")[:2]
        groups[f"{module}.{layer}" if layer.isdecimal() else module] += 1
    return ", ".join(name if count == 1 else f"{name} ({count} arrays)" for name, count in groups.items())
