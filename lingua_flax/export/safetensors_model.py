"""Export as safetensors: the parameters by name, readable from any framework."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from safetensors.numpy import save

from lingua_flax.export import numpy_translator
from lingua_flax.export.description import Export, describe, filled, write_json
from lingua_flax.model.parameters import params_by_name


def write(export: Export, folder: Path) -> str:
    """Writes model.safetensors, config.json and translate.py."""
    (folder / "model.safetensors").write_bytes(save(params_by_name(jax.device_get(export.translator.params))))
    write_json(folder / "config.json", describe(export.translator))
    shutil.copyfile(numpy_translator.__file__, folder / "translate.py")
    return filled("safetensors")


def translate(export: Export, folder: Path, lines: Sequence[str], beam_size: int) -> Iterator[tuple[list[int], float]]:
    """Yields what the code of translate.py makes of lines."""
    network = numpy_translator.Network(folder)
    for source in export.translator.tokenizer.encode_source(lines):
        yield numpy_translator.beam_search(network, source, beam_size)
