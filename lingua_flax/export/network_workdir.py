"""Export as a workdir: the network alone, to be handed on, in half the space or less."""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lingua_flax.data.known_words import WORDS_NAME
from lingua_flax.export.description import Export, filled, tokenizer_names
from lingua_flax.export.parity import translated
from lingua_flax.options.config_files import CONFIG_NAME, HELD_OUT_NAME, ORIGIN_NAME
from lingua_flax.options.schema import ComputeConfig
from lingua_flax.runs.checkpoint import read_metadata
from lingua_flax.runs.new_workdir import write_network
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.translator import Translator


def write(export: Export, folder: Path) -> str:
    """Writes what a workdir needs but its training."""
    run, step, stored = export.run, export.translator.step, jnp.dtype(export.quantization)
    names = (*tokenizer_names(export.translator).values(), WORDS_NAME, HELD_OUT_NAME, ORIGIN_NAME, CONFIG_NAME)
    files = {name: (run / name).read_bytes() for name in names if (run / name).exists()}
    params = jax.tree.map(lambda leaf: np.asarray(leaf, stored), jax.device_get(export.translator.params))
    metadata = read_metadata(Workdir(run).checkpoints, step) | {"best_step": step}
    write_network(folder, files, params, metadata, step)
    return filled("workdir")


def translate(export: Export, folder: Path, lines: Sequence[str], beam_size: int) -> list[tuple[list[int], float]]:
    """Returns what this program makes of lines with the workdir."""
    language = export.translator.languages[1] if export.translator.tokenizer.source_tags else None
    devices = ComputeConfig(platform="cpu", precision="float32")
    return translated(Translator.load(folder, devices=devices, target_language=language), lines, beam_size)
