"""The dry run: reports what a training run would need, without training."""

import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lingua_flax.data.corpora.downloads import offline
from lingua_flax.data.tokenizer import load_tokenizer
from lingua_flax.data.training_data import open_training_data
from lingua_flax.devices.topology import Chip, chip_in_topology
from lingua_flax.host.errors import UserError
from lingua_flax.host.terminal import print_table
from lingua_flax.model.parameters import params_by_name
from lingua_flax.model.transformer import Structure, structure
from lingua_flax.options.schema import Config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.data_checks import check_data
from lingua_flax.training.device_memory import ACTIVATIONS, format_bytes
from lingua_flax.training.given_tokenizer import given_tokenizer
from lingua_flax.training.recorder import show_table
from lingua_flax.training.reports.compiled_step import CompiledStep, compiled_step, model_flops
from lingua_flax.training.schedule import steps_of_run

# The share of target positions that hold a token, assumed for a run that has not begun: packing fills about 98% of the
# positions on the longer side and fewer on the other (measured: docs/results/index.md).
ASSUMED_REAL_TOKENS = 0.95
log = logging.getLogger(__name__)


def show_dry_run(config: Config, workdir: Path | None, tokens_per_second: float | None, json_file: Path | None) -> None:
    """Prints parameters, operations, memory on each device and length of a run, without training.

    Without devices.topology, logs what training would say about the data. The tokenizer and the metrics in the workdir
    are used if there are any. The duration is estimated from `tokens_per_second`, which counts real target tokens.
    Raises UserError if the config does not fit the mesh, and RunError if the compiler failed.
    """
    files = given_tokenizer(config, workdir)
    tokenizer, size = load_tokenizer(files) if files else None, config.tokenizer.vocab_size
    sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size) if tokenizer else (size, size)
    step = compiled_step(config, sizes)
    _show_parameters(config, structure(config.model, *sizes))
    _show_step(config, sizes[1])
    _show_memory(step)
    if config.devices.topology:
        _show_min_times(step, chip_in_topology(config.devices.topology))
    else:  # with a topology, the run is planned for another machine
        config = _with_steps(config, files)
    _show_length(config, sizes[1], math.prod(step.mesh.values()), workdir, tokens_per_second)
    if json_file:
        json_file.write_text(json.dumps(step._asdict(), indent=1) + "\n", encoding="utf-8")


# Labels of an embedding that is shared, by model.tied_embeddings.
SHARED = {"all": "embedding of source, target and output", "decoder": "embedding of target and output"}


def _show_parameters(config: Config, network: Structure) -> None:
    labels = {"target_embedding": SHARED.get(config.model.tied_embeddings, "target embedding")}
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
    """Returns the number of parameters of each module, and of each kind of sublayer, such as "encoder feed_forward"."""
    counts: Counter[str] = Counter()
    for path, leaf in params_by_name(network.params).items():
        name, *inner = path.split(".")
        if name in ("encoder", "decoder"):
            name = f"{name} norms" if inner[1].endswith("_residual") else f"{name} {inner[1]}"
        elif name.endswith("_norm"):
            name = f"{name.removesuffix('_norm')} norms"
        counts[name] += leaf.size
    tables = ("source_embedding", "target_embedding", "output_embedding", "output_bias", "position_embedding")
    order = (*tables, "encoder", "decoder")
    return dict(sorted(counts.items(), key=lambda item: order.index(item[0].split()[0])))


def _show_step(config: Config, vocab_size: int) -> None:
    length, parts = config.data.row_length, config.training.accumulation_steps
    positions, flops = config.rows_per_batch * length, model_flops(config, vocab_size)
    rows = {
        "rows": f"{config.rows_per_batch:,} of {length} source and {length} target positions",
        "target positions": f"{positions:,}, most of which hold a token",
        "model FLOPs": f"{flops:.3g}, {flops / positions:.3g} per target position",
    }
    if parts > 1:
        rows["accumulation steps"] = f"{parts}"
    show_table("a step", rows)


def _show_memory(step: CompiledStep) -> None:
    rows = {"mesh": ", ".join(f"{axis} {size}" for axis, size in step.mesh.items())}
    rows["compiled for"] = f"{step.compiled_for}, {step.dtype}"
    sizes: dict[str, int | None] = {**step.memory_by_use, ACTIVATIONS: step.memory_by_use.get(ACTIVATIONS)}
    rows |= {name: "not known" if size is None else format_bytes(size) for name, size in sizes.items()}
    rows["in all"] = format_bytes(sum(step.memory_by_use.values()))
    if step.device_memory_bytes:
        fits = "this fits" if step.fits else step.shortage or "this does not fit"
        rows["the device has"] = f"{format_bytes(step.device_memory_bytes)}: {fits}"
    show_table("memory on each device", rows)


def _show_min_times(step: CompiledStep, chip: Chip) -> None:
    rows = {"attention": step.attention}
    flops, accessed, sent = step.flops, step.bytes_accessed, step.sent_bytes
    if flops and accessed:
        time, rate = flops / chip.flops_per_second, f"{chip.flops_per_second / 1e12:,.0f} TFLOP/s"
        rows["operations"] = f"{flops:.3g}: {1000 * time:,.3g} ms at {rate}"
        time, rate = accessed / chip.bytes_per_second, f"{chip.bytes_per_second / 1e9:,.0f} GB/s"
        rows["bytes accessed"] = f"{format_bytes(accessed)}: {1000 * time:,.3g} ms at {rate}"
    if sent:  # twice, because a device receives as much as it sends
        time, rate = 2 * sent / chip.link_bytes_per_second, f"{chip.link_bytes_per_second / 1e9:,.0f} GB/s in and out"
        rows["bytes sent to others"] = f"{format_bytes(sent)}: {1000 * time:,.3g} ms at {rate}"
    if step.kernels:
        rows["kernels"] = f"{step.kernels:,}"
    rows["compiled in"] = f"{step.compile_seconds:.0f} s"
    show_table("a step at peak rates", rows)


def _with_steps(config: Config, tokenizer_files: Sequence[Path]) -> Config:
    """Checks the data as training does, if they are on this machine; returns the config with steps for its epochs."""
    try:
        with offline():
            data = open_training_data(config, tokenizer_files)
    except UserError as error:
        log.warning("the data were not checked: %s", error)
        return config
    check_data(data)
    steps = {"num_steps": steps_of_run(config, data), "num_epochs": None}
    return config.model_copy(update={"training": config.training.model_copy(update=steps)})


def _show_length(
    config: Config, vocab_size: int, devices: int, workdir: Path | None, tokens_per_second: float | None
) -> None:
    num_steps, per_step = config.training.num_steps, config.rows_per_batch * config.data.row_length
    if num_steps is None:
        length = f"{config.training.num_epochs:g} epochs; the number of steps depends on the corpus"
        show_table("the run", {"length": length})
        return
    positions = num_steps * per_step
    rows = {"steps": f"{num_steps:,}", "target positions": f"{positions:,}"}
    if tokens_per_second:
        measured = _measured_real_tokens(workdir, per_step)
        share = measured or ASSUMED_REAL_TOKENS
        flops = model_flops(config, vocab_size) / per_step
        positions_per_second = tokens_per_second / share
        rows["real tokens"] = f"{share:.1%} of the target positions ({'metrics.jsonl' if measured else 'assumed'})"
        rows["time"] = f"{positions / positions_per_second / 3600:,.2f} hours at {tokens_per_second:,.0f} tokens/s"
        rows["model FLOP/s"] = f"{flops * positions_per_second / devices:.3g} on each device"
    else:
        rows["time"] = "give --tokens-per-second N, as reported by a run, for an estimate"
    show_table("the run", rows)


def _measured_real_tokens(workdir: Path | None, positions: int) -> float | None:
    """Returns the share of each step's target positions that held a token so far, or None before the first step."""
    lines = Workdir(workdir).read_metrics() if workdir else []
    tokens = [line["tokens"] for line in lines if line.get("tokens")]
    return sum(tokens) / (len(tokens) * positions) if tokens else None
