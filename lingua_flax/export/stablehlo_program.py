"""Export as StableHLO: compiled programs for greedy and beam search that need JAX only."""

import functools
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from lingua_flax.export import stablehlo_loader
from lingua_flax.export.description import describe, filled, write_json
from lingua_flax.export.parity import Engine
from lingua_flax.export.stablehlo_loader import Programs
from lingua_flax.model.parameters import params_by_name, replace_params
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import DataConfig
from lingua_flax.options.special_ids import EOS_ID, PAD_ID
from lingua_flax.translation import decoding
from lingua_flax.translation.translator import Translator

PLATFORMS = ("cpu", "cuda", "tpu")


def write_stablehlo(
    translator: Translator, data: DataConfig, folder: Path, *, batch_size: int, source_length: int, beam_size: int
) -> str:
    """Writes both programs, parameters.npz, config.json and translate.py, and returns how to use them, as Markdown."""
    tokenizer = translator.tokenizer
    network = structure(translator.config, tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    longest = min(decoding.default_max_length(source_length), translator.max_length)
    sizes = {"batch_size": batch_size, "source_length": source_length, "beam_size": beam_size}

    def search(beams: int, parameters: Any, source: jax.Array, alpha: jax.Array) -> tuple[jax.Array, jax.Array]:
        is_token = (source != PAD_ID).astype(jnp.int32)
        limits = decoding.default_max_length(jnp.sum(is_token, axis=-1))
        request = decoding.DecodingRequest(
            source=source,
            visible=is_token,
            max_lengths=jnp.minimum(limits, translator.max_length),
            min_lengths=jnp.ones_like(limits),
            prefixes=jnp.zeros((len(source), 0), jnp.int32),
            numbers=jnp.zeros((len(source), 2), jnp.int32),
        )
        networks = [decoding.Network(network.graphdef, replace_params(network.params, parameters))]
        how = decoding.Decoding(decoding.Program(beams, longest), None, 1, alpha)
        hypotheses = decoding.search_or_sample(networks, request, how)
        return hypotheses.tokens[:, 0], hypotheses.scores[:, 0]

    parameters = params_by_name(jax.device_get(translator.params))
    source = np.zeros((batch_size, source_length), np.int32)
    for name, beams in (("greedy", 1), ("beam", beam_size)):
        program = jax.jit(functools.partial(search, beams))
        exported = export.export(program, platforms=PLATFORMS)(parameters, source, np.float32(0))
        (folder / f"{name}.stablehlo").write_bytes(exported.serialize())
    np.savez(folder / "parameters.npz", **parameters)
    write_json(folder / "config.json", describe(translator, data) | sizes | {"jax": jax.__version__})
    shutil.copyfile(stablehlo_loader.__file__, folder / "translate.py")
    return filled("stablehlo", **sizes, pad=PAD_ID, jax=jax.__version__)


def stablehlo_engine(folder: Path) -> Engine:
    """Returns the engine of a folder exported as StableHLO, which is the code that translate.py there runs."""
    programs = Programs(folder)

    def translate(source: list[int], beam_size: int) -> tuple[list[int], float]:
        ((ids, score),) = programs.translate([source], "greedy" if beam_size == 1 else "beam", 0.0)
        return ids[: ids.index(EOS_ID)], score

    return translate
