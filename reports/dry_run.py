"""The dry run: what a training run would need, told before anything is trained."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rich.table import Table

from configs.schema import REST, Config
from model.flops import training_flops
from model.transformer import Structure, structure
from runtime.devices import check_divides, check_divides_vocabularies, compute_dtype, make_mesh, start_simulated
from runtime.terminal import print_table
from runtime.workdir import Workdir
from training.fast_attention import fast_attention
from training.footprint import in_bytes, memory_of_step
from training.preparation import vocab_sizes
from training.recorder import show_table

# Share of the target positions that hold a token, of a run that has not begun: packing fills some 98% of the longer
# side's positions, and fewer of the other's.
ASSUMED_REAL_TOKENS = 0.95


def show_dry_run(config: Config, workdir: Path | None, tokens_per_second: float | None) -> None:
    """Prints parameters, operations, memory on each device and length of a run; writes nothing.

    The mesh need not be here: where it has more devices than there are, that many CPUs are simulated.

    Args:
      tokens_per_second: real target tokens, as training reports them, to reckon the hours with.

    Raises:
      UserError: something in the config cannot work on this mesh.
    """
    sizes = vocab_sizes(config, workdir)
    count = math.prod(size for _, size in config.devices.mesh if size != REST)
    mesh = make_mesh(config.devices.mesh, start_simulated(config.devices.platform, count))
    check_divides(mesh, config)
    check_divides_vocabularies(mesh, sizes)
    network = structure(config.model, *sizes, _compute_dtype(config, mesh), fast_attention(config, mesh))
    _show_parameters(config, network)
    _show_step(config, sizes[1])
    _show_memory(config, network, mesh)
    _show_length(config, sizes[1], mesh, workdir, tokens_per_second)


EMBEDDINGS = {  # what each is of, where it is shared
    "all": {"target_embedding": "embedding of source, target and output"},
    "decoder": {"target_embedding": "embedding of target and output"},
    "none": {},
}


def _show_parameters(config: Config, network: Structure) -> None:
    shared = EMBEDDINGS[config.model.tied_embeddings]
    counts = parameters_by_module(network)
    total = sum(counts.values())
    table = Table(title="parameters", title_justify="left", show_footer=True)
    table.add_column("module", footer="total")
    table.add_column("numbers", justify="right", footer=f"{total:,}")
    table.add_column("share", justify="right", footer="100%")
    for name, count in counts.items():
        table.add_row(shared.get(name, name.replace("_", " ")), f"{count:,}", f"{count / total:.1%}")
    print_table(table)


def parameters_by_module(network: Structure) -> dict[str, int]:
    """Numbers of parameters by module, the name of its class's attribute: of the encoder and the decoder each kind of
    sublayer over all layers, such as "encoder feed_forward", and norms."""
    counts: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(network.params):
        name, *inner = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
        if name in ("encoder", "decoder"):
            name = f"{name} norms" if inner[1].startswith("around") else f"{name} {inner[1]}"
        elif name.endswith("_norm"):
            name = f"{name.removesuffix('_norm')} norms"
        counts[name] = counts.get(name, 0) + math.prod(leaf.shape)
    order = ("source_embedding", "target_embedding", "output_embedding", "position_embedding", "encoder", "decoder")
    return dict(sorted(counts.items(), key=lambda item: order.index(item[0].split()[0])))


def _show_step(config: Config, vocab_size: int) -> None:
    length, parts = config.data.row_length, config.training.accumulation_steps
    positions = config.rows_per_batch * length
    flops = config.rows_per_batch * training_flops(config.model, vocab_size, length, length)
    rows = {
        "rows": f"{config.rows_per_batch:,} of {length} source and {length} target positions",
        "target positions": f"{positions:,}, most of which hold a token",
        "model FLOPs": f"{flops:.3g}, {flops / positions:.3g} a target position",
    }
    if parts > 1:
        rows["parts, one after the other"] = f"{parts}"
    show_table("a step", rows)


def _show_memory(config: Config, network: Structure, mesh: Mesh) -> None:
    memory = memory_of_step(network, config, mesh)
    dtype = _compute_dtype(config, mesh)
    count, kind = mesh.size, mesh.devices.flat[0].device_kind
    rows = {
        "mesh": ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items()),
        "compiled for": f"{count} x {kind}{' (simulated)' if kind == 'cpu' and count > 1 else ''}, {dtype}",
        "parameters": in_bytes(memory.parameters),
        "moving average": in_bytes(memory.average),
        "optimizer": in_bytes(memory.optimizer),
        "batch": in_bytes(memory.batch),
        "activations and gradients": "not known" if memory.activations is None else in_bytes(memory.activations),
        "in all": in_bytes(memory.total),
    }
    if not memory.average:
        del rows["moving average"]
    show_table("memory on each device", rows)


def _compute_dtype(config: Config, mesh: Mesh) -> jnp.dtype:
    """Type of activations on the platform asked for, which CPUs may only stand for."""
    precision, on_cpu = config.devices.precision, mesh.devices.flat[0].platform == "cpu"
    if precision == "auto" and on_cpu and config.devices.platform in ("gpu", "tpu"):
        precision = "bfloat16"
    return compute_dtype(precision, mesh)


def _show_length(
    config: Config, vocab_size: int, mesh: Mesh, workdir: Path | None, tokens_per_second: float | None
) -> None:
    training, length = config.training, config.data.row_length
    if training.num_steps is None:
        show_table("the run", {"length": f"{training.num_epochs:g} epochs, whose steps depend on the corpus"})
        return
    positions = training.num_steps * config.rows_per_batch * length
    rows = {"steps": f"{training.num_steps:,}", "target positions": f"{positions:,}"}
    if tokens_per_second:
        measured = _measured_real_tokens(config, workdir)
        share = measured or ASSUMED_REAL_TOKENS
        flops = training_flops(config.model, vocab_size, length, length) / length
        positions_per_second = tokens_per_second / share
        rows["real tokens"] = f"{share:.1%} of the target positions ({'metrics.jsonl' if measured else 'assumed'})"
        rows["time"] = f"{positions / positions_per_second / 3600:,.2f} hours at {tokens_per_second:,.0f} tokens/s"
        rows["model FLOP/s"] = f"{flops * positions_per_second / mesh.size:.3g} on each device"
    else:
        rows["time"] = "give --tokens-per-second N, as a run reports it, to have it reckoned"
    show_table("the run", rows)


def _measured_real_tokens(config: Config, workdir: Path | None) -> float | None:
    """The share of target positions that held a token in the steps the workdir's run has taken; None without any."""
    lines = Workdir(workdir).read_metrics() if workdir else []
    tokens = [line["tokens"] for line in lines if line.get("tokens")]
    return sum(tokens) / (len(tokens) * config.rows_per_batch * config.data.row_length) if tokens else None
