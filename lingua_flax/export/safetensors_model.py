"""Export as safetensors: the parameters by name, readable from any framework."""

import shutil
from pathlib import Path

import jax
from safetensors.numpy import save

from lingua_flax.export import numpy_translator
from lingua_flax.export.description import Export, describe, filled, write_json
from lingua_flax.export.parity import Engine
from lingua_flax.model.parameters import params_by_name


def write(export: Export, folder: Path) -> str:
    """Writes model.safetensors, config.json and translate.py."""
    (folder / "model.safetensors").write_bytes(save(params_by_name(jax.device_get(export.translator.params))))
    write_json(folder / "config.json", describe(export.translator))
    shutil.copyfile(numpy_translator.__file__, folder / "translate.py")
    return filled("safetensors")


def load(export: Export, folder: Path) -> Engine:
    """Returns the code that translate.py runs, with the folder."""
    network, encode = numpy_translator.Network(folder), export.translator.tokenizer.encode_source
    return lambda lines, beams: (numpy_translator.beam_search(network, source, beams) for source in encode(lines))
