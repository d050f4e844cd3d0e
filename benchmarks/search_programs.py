"""Compiles a step of beam search for a TPU and a GPU that are not there, and prints what it costs.

Run from the repository root:
  python -m benchmarks.search_programs [--config wmt14_en_de_base] [--topology v5e:1x1 h100:1]

Per position of a batch of BATCH_SIZE sentences of max_length tokens: kernels, the bytes that they read and write, and
the memory that the program takes beside its arguments. The compilers are in the extras tpu and cuda.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lingua_flax.__main__ import exit_status
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.platform import compute_precision
from lingua_flax.devices.sharding import replicated
from lingua_flax.devices.topology import check_compiler, topology_devices, with_compiler
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config, DecodingOptions, MeshConfig
from lingua_flax.training.reports.hlo_text import read_program
from lingua_flax.translation import decoding

BATCH_SIZE = 256


def compiled(config: Config, topology: str, beams: int) -> tuple[int, int, int]:
    """Returns kernels, bytes moved and bytes of memory; called by `with_compiler`."""
    mesh = make_mesh(MeshConfig(), topology_devices(topology))

    def on_device(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated(mesh)), tree)

    vocab_size, length = config.tokenizer.vocab_size, config.model.max_length
    network = structure(config.model, vocab_size, vocab_size, compute_precision("auto", mesh))
    networks = [decoding.Network(network.graphdef, on_device(network.params))]
    tokens, number = np.zeros((BATCH_SIZE, length), np.int32), np.zeros(BATCH_SIZE, np.int32)
    request = decoding.DecodingRequest(tokens, tokens, number, number, number, tokens[:, :0], tokens[:, :2])
    room = decoding.length_limit(length, 0, DecodingOptions(), length)
    how = decoding.Decoding(decoding.Program(beams, room), None, on_device(np.float32(0.6)), on_device(np.float32(5)))
    limits = on_device([np.int32(1), np.int32(0)])
    state = jax.eval_shape(decoding.start, networks, on_device(request), how, *limits).progress
    active = on_device(np.ones(BATCH_SIZE, bool))
    program = decoding.go_on.lower(networks, on_device(state), how, active, *limits).compile()
    text, memory = program.as_text(), program.memory_analysis()
    assert text
    assert memory
    return *read_program(text), memory.temp_size_in_bytes


def main(argv: Sequence[str]) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="wmt14_en_de_base")
    parser.add_argument("--topology", nargs="+", default=["v5e:1x1", "h100:1"])
    options = parser.parse_args(argv)
    config = read_config(Path("configs", f"{options.config}.toml"))
    print("| compiled for | beams | kernels | MB read and written | MB of memory |\n|---|---|---|---|---|")
    for topology in options.topology:
        check_compiler(topology)
        for beams in (1, 5):
            kernels, moved, memory = with_compiler(compiled, config, topology, beams)
            print(f"| {topology} | {beams} | {kernels:,} | {moved / 1e6:,.0f} | {memory / 1e6:,.0f} |", flush=True)


if __name__ == "__main__":
    from benchmarks import search_programs  # by which the compiler's process finds what it calls

    sys.exit(exit_status(search_programs.main, sys.argv[1:]))
