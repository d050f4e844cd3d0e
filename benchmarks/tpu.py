"""What a TPU's own compiler says of this project's programs, for TPUs that are not here; nothing is run.

Run from the repository's root, with the extra tpu: python benchmarks/tpu.py [--only NAME ...]
All of it takes an hour on two cores; names are those of the first column, such as base or "tiny, beam search".
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

from data.batch import Batch
from devices.mesh import make_mesh
from devices.sharding import replicated, row_sharding, sharded_shapes
from devices.tpu_topology import chip_in_topology, topology_devices
from model.transformer import structure
from options.config_files import read_config
from options.schema import Config, DecodingOptions, DevicesConfig, MeshConfig
from reports.compiled_step import compiled_step, with_tpu_compiler
from training.validation import loss_sum
from translation.decoding import Network, Request, compile_search

ROOT = Path(__file__).parent.parent

CHIPS_PER_HOST = 4
ROWS, SOURCE, TARGET = 512, 64, 138  # a batch of sentences to translate, and the room that their translations have
BEAMS = 5


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step: the config's file, the TPUs, and what differs from the file."""

    config: str
    topology: str = "v5e:1x1"
    fsdp: bool = False
    rows: int | None = None

    def resolved(self) -> Config:
        """The config with its devices and its batch."""
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
    found = compiled_step(config, (config.tokenizer.vocab_size,) * 2)
    chips = math.prod(found.mesh.values())
    if not found.flops or not found.bytes_accessed:
        print(f"| {name} | {step.topology} | does not fit: {found.shortage} |", flush=True)
        return
    chip = chip_in_topology(step.topology)
    compute, memory = found.flops / chip.flops_per_second, found.bytes_accessed / chip.bytes_per_second
    exchange = 2 * (found.sent_bytes or 0) / chip.link_bytes_per_second  # as much comes in as goes out
    longest = max(compute, memory)
    fed = config.rows_per_batch * config.data.row_length / longest / max(1, chips // CHIPS_PER_HOST)
    show_row(
        name,
        step.topology,
        *map(_gigabytes, (found.argument_bytes, found.temporary_bytes)),
        f"{found.flops:.3g}",
        _gigabytes(found.bytes_accessed),
        *(f"{1e3 * seconds:.3g}" for seconds in (compute, memory)),
        f"{1e3 * exchange:.3g} ({exchange / longest:.0%})" if exchange else "",
        f"{fed / 1e6:.2f}",
        f"{found.compile_seconds:.0f}",
    )


def show_decoding(name: str, path: str, program: str) -> None:
    """Compiles a program that validates or translates and prints its row."""
    config = read_config(ROOT / "configs" / f"{path}.toml")
    found, smallest = with_tpu_compiler(_compiled_decoding, config, program)
    chip = chip_in_topology("v5e:1x1")
    show_row(
        name,
        *map(_gigabytes, (found.argument_bytes, found.temporary_bytes)),
        f"{found.flops:.3g}",
        _gigabytes(found.bytes_accessed),
        _gigabytes(smallest),
        f"{1e3 * found.flops / chip.flops_per_second:.3g}",
        f"{1e3 * found.bytes_accessed / chip.bytes_per_second:.3g}",
        f"{found.compile_seconds:.0f}",
    )


def show_row(*cells: str) -> None:
    """Prints a row of a table in Markdown."""
    print(f"| {' | '.join(cells)} |", flush=True)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """As those of CompiledStep."""

    flops: float
    bytes_accessed: float
    argument_bytes: int
    temporary_bytes: int
    compile_seconds: float


def _compiled_decoding(config: Config, program: str) -> tuple[Compiled, int | None]:
    """And, of a decode step, the bytes of all that it has to read: parameters and caches."""
    mesh = make_mesh(MeshConfig(), topology_devices("v5e:1x1"))
    network = structure(config.model, *(config.tokenizer.vocab_size,) * 2, jnp.dtype("bfloat16"))
    params = sharded_shapes(network.params, replicated(mesh))
    smallest = None
    started = time.monotonic()
    if program == "validation loss":
        shape = jax.ShapeDtypeStruct((ROWS, SOURCE), jnp.int32)
        batch = sharded_shapes(Batch._make([shape] * len(Batch._fields)), row_sharding(mesh))
        compiled = loss_sum.lower(params, batch, graphdef=network.graphdef).compile()
    elif program == "decode step":
        step, arguments = _decode_step(network.graphdef, config, params, mesh)
        compiled = jax.jit(step, donate_argnums=5).lower(*arguments).compile()
        half = sum(leaf.size for leaf in jax.tree.leaves(arguments[0])) * 4
        smallest = half + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments[4:]))
    else:
        shapes = {"source": (ROWS, SOURCE), "visible": (ROWS, SOURCE), "limits": (ROWS,), "minimums": (ROWS,)}
        shapes |= {"prefixes": (ROWS, 0), "numbers": (ROWS, 2)}
        arrays: dict[str, Any] = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
        request = sharded_shapes(Request(**arrays), row_sharding(mesh))
        options = DecodingOptions(beam_size=1 if program == "greedy search" else BEAMS)
        networks = [Network(network.graphdef, params)]
        compiled, _ = compile_search(networks, request, options, config.model.max_length, whole_batches=True)
    seconds = time.monotonic() - started
    costs, memory = compiled.cost_analysis(), compiled.memory_analysis()
    assert costs
    assert memory
    return (
        Compiled(
            costs["flops"],
            costs["bytes accessed"],
            memory.argument_size_in_bytes,
            memory.temp_size_in_bytes,
            seconds,
        ),
        smallest,
    )


def _decode_step(graphdef: nnx.GraphDef, config: Config, params: Any, mesh: Any) -> tuple[Any, Sequence[Any]]:
    """Transformer.decode_step with five beams, as a function of arrays, and the shapes of these."""

    def step(params: Any, tokens: Any, index: Any, lineage: Any, memory: Any, caches: Any) -> Any:
        return nnx.merge(graphdef, params).decode_step(tokens, index, lineage, memory, caches)

    def start(params: Any, source: Any) -> Any:
        return nnx.merge(graphdef, params).start_decoding(source, BEAMS, TARGET)

    memory, caches = jax.eval_shape(start, params, jax.ShapeDtypeStruct((ROWS, SOURCE), jnp.int32))
    tokens, index, lineage = (
        jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((ROWS, BEAMS), (), (ROWS, BEAMS, TARGET))
    )
    placed = sharded_shapes((tokens, lineage, memory, caches), row_sharding(mesh))
    return step, (params, placed[0], index, placed[1], placed[2], placed[3])


def _gigabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e9:.3g}"


def main() -> None:
    """Prints two tables: training steps, and what validates and translates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*STEPS, *DECODING])
    wanted = parser.parse_args().only
    amounts = ("arguments, GB", "temporaries, GB", "operations", "bytes accessed, GB")
    at_peak = ("ms for operations", "ms for bytes")
    if chosen := [name for name in STEPS if name in wanted]:
        show_header("step", "TPUs", *amounts, *at_peak, "ms to exchange", "M positions/s a host", "compiled in, s")
        for name in chosen:
            show_step(name, STEPS[name])
    if chosen := [name for name in DECODING if name in wanted]:
        print(
            f"\n{ROWS} sentences of {SOURCE} tokens, {TARGET} for a translation; one turn of a search's loop counts.\n"
        )
        show_header("v5e:1x1", *amounts, "parameters and caches, GB", *at_peak, "compiled in, s")
        for name in chosen:
            show_decoding(name, *DECODING[name])


def show_header(*cells: str) -> None:
    """Prints the head of a table in Markdown."""
    show_row(*cells)
    print("|" + "---|" * len(cells), flush=True)


if __name__ == "__main__":
    main()
