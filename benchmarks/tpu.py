"""Compiles this project's programs for TPUs and prints the compiler's cost estimates; no TPU is needed or used.

Run from the repository root, with the extra `tpu` installed: python benchmarks/tpu.py [--only NAME ...]
All programs take about an hour on two cores. NAME is an entry of the first column, such as base or "tiny, beam search".
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from lingua_flax.data.batch import Batch
from lingua_flax.devices.compilation import compiled_program
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.sharding import replicated, row_sharding, sharded_shapes
from lingua_flax.devices.topology import chip_in_topology, topology_devices
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.precision import BFLOAT16
from lingua_flax.options.schema import Config, DecodingOptions, DevicesConfig, MeshConfig
from lingua_flax.training.reports.compiled_step import compiled_step, with_compiler
from lingua_flax.training.validation import loss_sum
from lingua_flax.translation.decoding import DecodingRequest, Network, decoding_of, search_or_sample

ROOT = Path(__file__).parent.parent

CHIPS_PER_HOST = 4
# Programs for decoding: sentences in a batch, their length in tokens, and the maximum length of a translation.
ROWS, SOURCE, TARGET = 512, 64, 138
BEAMS = 5


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step to compile.

    Attributes:
      config: name of a file in configs/.
      topology: the TPUs.
      fsdp: whether the parameters are sharded over all chips.
      rows: rows of a batch; None for those of the config.
    """

    config: str
    topology: str = "v5e:1x1"
    fsdp: bool = False
    rows: int | None = None

    def resolved(self) -> Config:
        """Returns the config with the devices and the batch size of this step."""
        config = read_config(ROOT / "configs" / f"{self.config}.toml")
        mesh = MeshConfig(data=1, fsdp=-1) if self.fsdp else MeshConfig()
        tokens = self.rows * config.data.row_length if self.rows else config.training.tokens_per_batch
        return config.model_copy(
            update={
                "devices": DevicesConfig(mesh=mesh, topology=self.topology),
                "training": config.training.model_copy(update={"tokens_per_batch": tokens}),
            }
        )


STEPS = {
    "tiny": Step("tiny"),
    "ted_pt_en": Step("ted_pt_en"),
    "multi30k_en_de": Step("multi30k_en_de"),
    "base": Step("wmt14_en_de_base"),
    "base, 8 chips": Step("wmt14_en_de_base", "v5e:2x4"),
    "big, 8 chips, fsdp": Step("wmt14_en_de_big", "v5e:2x4", fsdp=True),
    "big, 256 chips, 8,192 rows": Step("wmt14_en_de_big", "v5e:16x16", rows=8192),
}
DECODING = {
    f"{config}, {program}": (path, program)
    for config, path in (("tiny", "tiny"), ("base", "wmt14_en_de_base"))
    for program in ("validation loss", "greedy search", "beam search", "decode step")
}


def show_step(name: str, step: Step) -> None:
    """Compiles a training step and prints its row."""
    config = step.resolved()
    compiled = compiled_step(config, (config.tokenizer.vocab_size,) * 2)
    chips = math.prod(compiled.mesh.values())
    if not compiled.flops or not compiled.bytes_accessed:
        print(f"| {name} | {step.topology} | does not fit: {compiled.shortage} |", flush=True)
        return
    chip = chip_in_topology(step.topology)
    compute, memory = compiled.flops / chip.flops_per_second, compiled.bytes_accessed / chip.bytes_per_second
    communication = 2 * (compiled.sent_bytes or 0) / chip.link_bytes_per_second  # as many bytes are received as sent
    longest = max(compute, memory)
    positions_per_host = config.rows_per_batch * config.data.row_length / longest / max(1, chips // CHIPS_PER_HOST)
    show_row(
        name,
        step.topology,
        *map(_gigabytes, (compiled.argument_bytes, compiled.temporary_bytes)),
        f"{compiled.flops:.3g}",
        _gigabytes(compiled.bytes_accessed),
        *(f"{1e3 * seconds:.3g}" for seconds in (compute, memory)),
        f"{1e3 * communication:.3g} ({communication / longest:.0%})" if communication else "",
        f"{positions_per_host / 1e6:.2f}",
        f"{compiled.compile_seconds:.0f}",
    )


def show_decoding(name: str, path: str, program: str) -> None:
    """Compiles a program for validation or translation and prints its row."""
    config = read_config(ROOT / "configs" / f"{path}.toml")
    compiled, required_bytes = with_compiler(_compiled_decoding, config, program)
    chip = chip_in_topology("v5e:1x1")
    show_row(
        name,
        *map(_gigabytes, (compiled.argument_bytes, compiled.temporary_bytes)),
        f"{compiled.flops:.3g}",
        _gigabytes(compiled.bytes_accessed),
        _gigabytes(required_bytes),
        f"{1e3 * compiled.flops / chip.flops_per_second:.3g}",
        f"{1e3 * compiled.bytes_accessed / chip.bytes_per_second:.3g}",
        f"{compiled.compile_seconds:.0f}",
    )


def show_row(*cells: str) -> None:
    """Prints a row of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A compiled program for validation or translation; the attributes are those of CompiledStep."""

    flops: float
    bytes_accessed: float
    argument_bytes: int
    temporary_bytes: int
    compile_seconds: float


def _compiled_decoding(config: Config, program: str) -> tuple[CompiledProgram, int | None]:
    """Compiles a program for one chip, in bfloat16.

    Returns:
      The compiled program, and for a decode step the bytes of the parameters and caches, or else None.
    """
    mesh = make_mesh(MeshConfig(), topology_devices("v5e:1x1"))
    network = structure(config.model, *(config.tokenizer.vocab_size,) * 2, BFLOAT16)
    params = sharded_shapes(network.params, replicated(mesh))
    required_bytes = None
    started = time.monotonic()
    if program == "validation loss":
        shape = jax.ShapeDtypeStruct((ROWS, SOURCE), jnp.int32)
        batch = sharded_shapes(Batch._make([shape] * len(Batch._fields)), row_sharding(mesh))
        compiled = loss_sum.lower(params, batch, graphdef=network.graphdef).compile()
    elif program == "decode step":
        step, arguments = _decode_step(network.graphdef, config, params, mesh)
        compiled = jax.jit(step, donate_argnums=5).lower(*arguments).compile()
        params_bytes = sum(leaf.size for leaf in jax.tree.leaves(arguments[0])) * 4
        required_bytes = params_bytes + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments[4:]))
    else:
        shapes = {"source": (ROWS, SOURCE), "visible": (ROWS, SOURCE), "max_lengths": (ROWS,), "min_lengths": (ROWS,)}
        shapes |= {"prefixes": (ROWS, 0), "numbers": (ROWS, 2)}
        arrays: dict[str, Any] = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
        request = sharded_shapes(DecodingRequest(**arrays), row_sharding(mesh))
        options = DecodingOptions(beam_size=1 if program == "greedy search" else BEAMS)
        networks = [Network(network.graphdef, params)]
        how = decoding_of(options, request, config.model.max_length, num_hypotheses=1, keeps_full_batches=True)
        compiled = compiled_program(search_or_sample, networks, request, how)
    seconds = time.monotonic() - started
    costs, memory = compiled.cost_analysis(), compiled.memory_analysis()
    assert costs
    assert memory
    return (
        CompiledProgram(
            costs["flops"],
            costs["bytes accessed"],
            memory.argument_size_in_bytes,
            memory.temp_size_in_bytes,
            seconds,
        ),
        required_bytes,
    )


def _decode_step(graphdef: nnx.GraphDef, config: Config, params: Any, mesh: Any) -> tuple[Any, Sequence[Any]]:
    """Returns Transformer.decode_step with BEAMS beams as a function of arrays, and the shapes of its arguments."""

    def step(params: Any, tokens: Any, index: Any, beam_history: Any, memory: Any, caches: Any) -> Any:
        return nnx.merge(graphdef, params).decode_step(tokens, index, beam_history, memory, caches)

    def start(params: Any, source: Any) -> Any:
        return nnx.merge(graphdef, params).start_decoding(source, BEAMS, TARGET)

    memory, caches = jax.eval_shape(start, params, jax.ShapeDtypeStruct((ROWS, SOURCE), jnp.int32))
    tokens, index, beam_history = (
        jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((ROWS, BEAMS), (), (ROWS, BEAMS, TARGET))
    )
    tokens, beam_history, memory, caches = sharded_shapes((tokens, beam_history, memory, caches), row_sharding(mesh))
    return step, (params, tokens, index, beam_history, memory, caches)


def _gigabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e9:.3g}"


def main() -> None:
    """Prints two tables: one of training steps, one of programs for validation and translation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*STEPS, *DECODING])
    names = parser.parse_args().only
    amounts = ("arguments, GB", "temporaries, GB", "operations", "bytes accessed, GB")
    at_peak = ("ms for operations", "ms for bytes")
    if steps := [name for name in STEPS if name in names]:
        show_header(
            "step", "TPUs", *amounts, *at_peak, "ms for communication", "M positions/s per host", "compile time, s"
        )
        for name in steps:
            show_step(name, STEPS[name])
    if programs := [name for name in DECODING if name in names]:
        print(
            f"\n{ROWS} sentences of {SOURCE} tokens, translations of up to {TARGET} tokens; only one iteration of a "
            "search loop is counted.\n"
        )
        show_header("v5e:1x1", *amounts, "parameters and caches, GB", *at_peak, "compile time, s")
        for name in programs:
            show_decoding(name, *DECODING[name])


def show_header(*cells: str) -> None:
    """Prints the header of a Markdown table."""
    show_row(*cells)
    print("|" + "---|" * len(cells), flush=True)


if __name__ == "__main__":
    main()
