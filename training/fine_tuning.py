"""Beginning with another run's parameters: which of them fit, and an account of those that do not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data.tokenizer import Tokenizer
from devices.processes import gather_to_host
from host.errors import UserError
from model.transformer import structure
from options.schema import Config
from translation.translator import Translator

VOCABULARY_BOUND = ("source_embedding", "target_embedding", "output_embedding")  # a row for each piece
log = logging.getLogger(__name__)


def matching_params(origin: Path, config: Config, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The parameters of a run's best checkpoint that fit into the network of the config, by their path in it.

    An array fits where the network has one of the same name and shape; embeddings only with the same tokenizer, since a
    row of another vocabulary stands for another piece. The log gets an account of what was taken and what was not.

    Raises:
      UserError: the run or its checkpoint is not there or damaged, or nothing fits.
    """
    other = Translator.load(origin, devices=config.devices)
    there = _by_path(gather_to_host(other.params))
    here = _by_path(structure(config.model, tokenizer.source_vocab_size, tokenizer.target_vocab_size).params)
    same_vocabulary = other.tokenizer.fingerprint == tokenizer.fingerprint
    taken, left = {}, {}
    for name, leaf in here.items():
        if name not in there:
            left[name] = "not there"
        elif name.partition(".")[0] in VOCABULARY_BOUND and not same_vocabulary:
            left[name] = "of another vocabulary"
        elif there[name].shape != leaf.shape:
            left[name] = "of another shape there"
        else:
            taken[name] = np.asarray(there[name])
    if not any(leaf.ndim > 1 for leaf in taken.values()):  # a few biases of the same length are no beginning
        raise UserError(f"{origin}: none of its matrices fits into this network; see [model] in its config.toml")
    numbers, needed = (sum(leaf.size for leaf in tree.values()) for tree in (taken, here))
    log.info(
        "%d of %d arrays, %s of %s numbers, are those of %s, step %s; optimizer, schedule and data begin anew",
        len(taken), len(here), f"{numbers:,}", f"{needed:,}", origin, f"{other.step:,}",
    )  # fmt: skip
    for reason in dict.fromkeys(left.values()):
        log.info("  begin anew, since %s: %s", reason, _grouped([name for name in left if left[name] == reason]))
    if unused := [name for name in there if name not in here]:
        log.info("  there, but not in this network: %s", _grouped(unused))
    return taken


def replace_params(params: Any, taken: Mapping[str, Any]) -> Any:
    """The parameters with those that were taken in their places."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: taken.get(_name(path), leaf), params)


def _by_path(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any) -> str:
    """Such as encoder.0.self_attention.query."""
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")


def _grouped(names: Sequence[str]) -> str:
    """encoder.0 (3 arrays), output_embedding"""
    groups: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        group = ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdecimal() else parts[0]
        groups[group] = groups.get(group, 0) + 1
    return ", ".join(name if count == 1 else f"{name} ({count} arrays)" for name, count in groups.items())
