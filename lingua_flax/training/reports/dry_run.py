"""The dry run: reports what a training run would need, without training."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rich.table import Table

from lingua_flax.devices.tpu_topology import Chip, chip_in_topology
from lingua_flax.host.terminal import print_table
from lingua_flax.model.flops import training_flops
from lingua_flax.model.parameters import params_by_name
from lingua_flax.model.transformer import Structure, structure
from lingua_flax.options.schema import Config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.device_memory import format_bytes
from lingua_flax.training.preparation import vocab_sizes
from lingua_flax.training.recorder import show_table
from lingua_flax.training.reports.compiled_step import CompiledStep, compiled_step

# The share of target positions that hold a token, assumed for a run that has not begun: packing fills about 98% of the
# positions on the longer side and fewer on the other (measured: docs/results/performance.md).
ASSUMED_REAL_TOKENS = 0.95


def show_dry_run(config: Config, workdir: Path | None, tokens_per_second: float | None, json_file: Path | None) -> None:
    """Prints parameters, operations, memory on each device and length of a run, without training.

    The devices of the mesh need not be available: the step can be compiled for a TPU topology, and if the mesh needs
    more devices than there are, CPUs are simulated. The tokenizer and the metrics in the workdir are used if there are
    any, and the compiler's figures are written to `json_file`. The duration is estimated from `tokens_per_second`,
    which counts real target tokens, as training reports them.

    Raises UserError if the config does not fit the mesh, and RunError if the compiler failed.
    """
    sizes = vocab_sizes(config, workdir)
    step = compiled_step(config, sizes)
    _show_parameters(config, structure(config.model, *sizes))
    _show_step(config, sizes[1])
    _show_memory(step)
    if config.devices.topology:
        _show_min_times(step, chip_in_topology(config.devices.topology))
    _show_length(config, sizes[1], math.prod(step.mesh.values()), workdir, tokens_per_second)
    if json_file:
        json_file.write_text(json.dumps(step.as_json(), indent=1) + "\n", encoding="utf-8")


EMBEDDINGS = {  # labels of the embeddings that are shared, by model.tied_embeddings
    "all": {"target_embedding": "embedding of source, target and output"},
    "decoder": {"target_embedding": "embedding of target and output"},
    "none": {},
}


def _show_parameters(config: Config, network: Structure) -> None:
    labels = EMBEDDINGS[config.model.tied_embeddings]
    counts = parameters_by_module(network)
    total = sum(counts.values())
    table = Table(title="parameters", title_justify="left", show_footer=True)
    table.add_column("module", footer="total")
    table.add_column("count", justify="right", footer=f"{total:,}")
    table.add_column("share", justify="right", footer="100%")
    for name, count in counts.items():
        table.add_row(labels.get(name, name.replace("_", " ")), f"{count:,}", f"{count / total:.1%}")
    print_table(table)


def parameters_by_module(network: Structure) -> dict[str, int]:
    """Returns the number of parameters of each module, by the name of its attribute.

    In the encoder and the decoder, each kind of sublayer is counted over all layers, such as "encoder feed_forward",
    and so are the norms.
    """
    counts: dict[str, int] = {}
    for path, leaf in params_by_name(network.params).items():
        name, *inner = path.split(".")
        if name in ("encoder", "decoder"):
            name = f"{name} norms" if inner[1].endswith("_residual") else f"{name} {inner[1]}"
        elif name.endswith("_norm"):
            name = f"{name.removesuffix('_norm')} norms"
        counts[name] = counts.get(name, 0) + math.prod(leaf.shape)
    order = ("source_embedding", "target_embedding", "output_embedding", "position_embedding", "encoder", "decoder")
    return dict(sorted(counts.items(), key=lambda item: order.index(item[0].split()[0])))


def _show_step(config: Config, vocab_size: int) -> None:
    length, parts = config.data.row_length, config.training.accumulation_steps
    positions = config.rows_per_batch * length
    passes = config.rows_per_batch * config.training.num_passes
    flops = passes * training_flops(config.model, vocab_size, length, length)
    rows = {
        "rows": f"{config.rows_per_batch:,} of {length} source and {length} target positions",
        "target positions": f"{positions:,}, most of which hold a token",
        "model FLOPs": f"{flops:.3g}, {flops / positions:.3g} per target position",
    }
    if parts > 1:
        rows["accumulation steps"] = f"{parts}"
    show_table("a step", rows)


def _show_memory(step: CompiledStep) -> None:
    memory = step.memory
    rows = {
        "mesh": ", ".join(f"{axis} {size}" for axis, size in step.mesh.items()),
        "compiled for": f"{step.compiled_for}, {step.dtype}",
        "parameters": format_bytes(memory.parameters),
        "moving average": format_bytes(memory.ema_params),
        "optimizer": format_bytes(memory.optimizer),
        "batch": format_bytes(memory.batch),
        "activations and gradients": "not known" if memory.activations is None else format_bytes(memory.activations),
        "in all": format_bytes(memory.total),
    }
    if not memory.ema_params:
        del rows["moving average"]
    if step.device_memory_bytes:
        fits = "this fits" if step.fits else step.shortage or "this does not fit"
        rows["the device has"] = f"{format_bytes(step.device_memory_bytes)}: {fits}"
    show_table("memory on each device", rows)


def _show_min_times(step: CompiledStep, chip: Chip) -> None:
    """Prints lower bounds of a step's time on each device: as if only operations took time, or only moving bytes."""
    rows = {}
    if step.flops and step.bytes_accessed:
        for name, amount_text, amount, rate, unit in (
            ("operations", f"{step.flops:.3g}", step.flops, chip.flops_per_second, "TFLOP/s"),
            ("bytes accessed", format_bytes(step.bytes_accessed), step.bytes_accessed, chip.bytes_per_second, "GB/s"),
        ):
            in_units = rate / {"TFLOP/s": 1e12, "GB/s": 1e9}[unit]
            rows[name] = f"{amount_text}: {1000 * amount / rate:,.3g} ms at {in_units:,.0f} {unit}"
    if step.sent_bytes:
        seconds = 2 * step.sent_bytes / chip.link_bytes_per_second  # a device receives as much as it sends
        both_ways = f"{chip.link_bytes_per_second / 1e9:,.0f} GB/s in and out"
        rows["bytes sent to others"] = f"{format_bytes(step.sent_bytes)}: {1000 * seconds:,.3g} ms at {both_ways}"
    rows["compiled in"] = f"{step.compile_seconds:.0f} s"
    show_table("a step at peak rates", rows)


def _show_length(
    config: Config, vocab_size: int, devices: int, workdir: Path | None, tokens_per_second: float | None
) -> None:
    training, length = config.training, config.data.row_length
    if training.num_steps is None:
        show_table("the run", {"length": f"{training.num_epochs:g} epochs; the number of steps depends on the corpus"})
        return
    positions = training.num_steps * config.rows_per_batch * length
    rows = {"steps": f"{training.num_steps:,}", "target positions": f"{positions:,}"}
    if tokens_per_second:
        measured = _measured_real_tokens(config, workdir)
        share = measured or ASSUMED_REAL_TOKENS
        flops = training.num_passes * training_flops(config.model, vocab_size, length, length) / length
        positions_per_second = tokens_per_second / share
        rows["real tokens"] = f"{share:.1%} of the target positions ({'metrics.jsonl' if measured else 'assumed'})"
        rows["time"] = f"{positions / positions_per_second / 3600:,.2f} hours at {tokens_per_second:,.0f} tokens/s"
        rows["model FLOP/s"] = f"{flops * positions_per_second / devices:.3g} on each device"
    else:
        rows["time"] = "give --tokens-per-second N, as reported by a run, for an estimate"
    show_table("the run", rows)


def _measured_real_tokens(config: Config, workdir: Path | None) -> float | None:
    """Returns the share of target positions that held a token in the run so far, or None if it has taken no steps."""
    lines = Workdir(workdir).read_metrics() if workdir else []
    tokens = [line["tokens"] for line in lines if line.get("tokens")]
    return sum(tokens) / (len(tokens) * config.rows_per_batch * config.data.row_length) if tokens else None
