"""Export as a workdir: the network alone, to be handed on, in half the space or less."""

import functools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lingua_flax.data.known_words import WORDS_NAME
from lingua_flax.export.description import Export, filled
from lingua_flax.export.parity import Engine, translated
from lingua_flax.options.config_files import CONFIG_NAME, HELD_OUT_NAME
from lingua_flax.options.schema import ComputeConfig
from lingua_flax.runs.checkpoint import read_metadata, save_network
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.translator import Translator


def write(export: Export, folder: Path) -> str:
    """Writes what a workdir needs but its training."""
    step = export.translator.step
    for name in (CONFIG_NAME, WORDS_NAME, HELD_OUT_NAME):
        if (export.run / name).exists():
            shutil.copyfile(export.run / name, folder / name)
    stored = jnp.dtype(export.quantization)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, stored), jax.device_get(export.translator.params))
    metadata = read_metadata(Workdir(export.run).checkpoints, step)
    save_network(Workdir(folder).checkpoints, step, params, metadata | {"best_step": step})
    return filled("workdir")


def load(export: Export, folder: Path) -> Engine:
    """Returns this program with the workdir."""
    language = export.translator.languages[1] if export.translator.tokenizer.source_tags else None
    devices = ComputeConfig(platform="cpu", precision="float32")
    return functools.partial(translated, Translator.load(folder, devices=devices, target_language=language))
