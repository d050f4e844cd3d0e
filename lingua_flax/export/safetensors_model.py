"""Export as safetensors: the parameters by name, readable from any framework."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from lingua_flax.export import numpy_translator
from lingua_flax.export.description import EXAMPLE, describe, write_json
from lingua_flax.export.numpy_translator import Network, beam_search
from lingua_flax.export.parity import Engine
from lingua_flax.model.parameters import params_by_name
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.translator import Translator

USAGE = """\
`model.safetensors` holds the parameters in float32 (names such as `encoder.0.self_attention.query.kernel`; kernels are
[inputs, outputs]), `config.json` the options of the network, and `translate.py` is the whole network in NumPy:

```
pip install numpy safetensors sentencepiece
echo "{example}" | python translate.py --beam-size 5
```"""


def write_safetensors(translator: Translator, data: DataConfig, folder: Path) -> str:
    """Writes model.safetensors, config.json and translate.py, and returns how to use them, as Markdown."""
    parameters = {name: np.asarray(array) for name, array in params_by_name(translator.params).items()}
    (folder / "model.safetensors").write_bytes(save(parameters))
    write_json(folder / "config.json", describe(translator, data))
    shutil.copyfile(numpy_translator.__file__, folder / "translate.py")
    return USAGE.format(example=EXAMPLE)


def safetensors_engine(folder: Path) -> Engine:
    """Returns the engine of a folder exported as safetensors, which is the code that translate.py there runs."""
    network = Network(folder)

    def translate(source: list[int], beam_size: int) -> tuple[list[int], float]:
        score, tokens = beam_search(network, source, beam_size)
        return tokens, score

    return translate
