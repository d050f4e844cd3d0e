"""Export as safetensors: the parameters by name, readable from any framework."""

import functools
import shutil
from pathlib import Path

import jax
from safetensors.numpy import save

from lingua_flax.export import numpy_translator
from lingua_flax.export.description import describe, filled, write_json
from lingua_flax.export.numpy_translator import Network, beam_search
from lingua_flax.export.parity import Engine
from lingua_flax.model.parameters import params_by_name
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.translator import Translator


def write_safetensors(translator: Translator, data: DataConfig, folder: Path) -> str:
    """Writes model.safetensors, config.json and translate.py, and returns how to use them, as Markdown."""
    (folder / "model.safetensors").write_bytes(save(params_by_name(jax.device_get(translator.params))))
    write_json(folder / "config.json", describe(translator, data))
    shutil.copyfile(numpy_translator.__file__, folder / "translate.py")
    return filled("safetensors")


def safetensors_engine(folder: Path) -> Engine:
    """Returns the engine of a folder exported as safetensors, which is the code that translate.py there runs."""
    return functools.partial(beam_search, Network(folder))
