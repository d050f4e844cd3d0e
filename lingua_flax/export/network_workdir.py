"""Export as a workdir: the network alone, to be handed on, in half the space or less."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lingua_flax.data.known_words import WORDS_NAME
from lingua_flax.export.description import filled
from lingua_flax.export.parity import Engine, engine_of
from lingua_flax.options.config_files import CONFIG_NAME, HELD_OUT_NAME
from lingua_flax.options.schema import ComputeConfig
from lingua_flax.runs.checkpoint import read_metadata, save_network
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.translator import Translator


def write_workdir(
    translator: Translator, run: Path, folder: Path, params_type: str, lines: Sequence[str]
) -> tuple[str, Callable[[], Engine]]:
    """Writes what a workdir needs but its training; returns how to use it, as Markdown, and the engine of the lines."""
    for name in (CONFIG_NAME, WORDS_NAME, HELD_OUT_NAME):
        if (run / name).exists():
            shutil.copyfile(run / name, folder / name)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.dtype(params_type)), jax.device_get(translator.params))
    metadata = read_metadata(Workdir(run).checkpoints, translator.step)
    save_network(Workdir(folder).checkpoints, translator.step, params, metadata | {"best_step": translator.step})

    def load() -> Engine:
        own = ComputeConfig(platform="cpu", precision="float32")
        return engine_of(Translator.load(folder, devices=own), lines)

    return filled("workdir"), load
