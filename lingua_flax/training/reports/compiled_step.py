"""The compiled training step: operations, bytes moved, memory, and whether it fits on a device."""

import math
import re
import time
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from lingua_flax.devices.mesh import check_divides, make_mesh
from lingua_flax.devices.platform import compute_precision, make_deterministic, simulated_devices
from lingua_flax.devices.topology import check_compiler, chip_in_topology, topology_devices, with_compiler
from lingua_flax.model.flops import training_flops
from lingua_flax.model.transformer import Structure, structure
from lingua_flax.options.precision import BFLOAT16, FLOAT32, Precision
from lingua_flax.options.schema import REMAINING_DEVICES, Config
from lingua_flax.training.device_memory import compile_step, memory_between_steps, memory_of_step
from lingua_flax.training.kernels.fused_attention import selected_attention
from lingua_flax.training.loss import number_of_blocks
from lingua_flax.training.reports.hlo_text import bytes_of, read_program
from lingua_flax.training.step import loss_block_size


class CompiledStep(NamedTuple):
    """What is known of a compiled training step, for each device; what is not known is None."""

    compiled_for: str  # the topology, or the number and kind of the devices
    attention: str  # "plain" or "fused"
    mesh: dict[str, int]
    dtype: str  # of matrix products
    memory_by_use: dict[str, int]  # as in `memory_of_step`
    device_memory_bytes: int | None
    compile_seconds: float | None = None
    flops: float | None = None
    bytes_accessed: float | None = None  # in the device's main memory
    sent_bytes: float | None = None  # to other devices
    kernels: int | None = None  # of a GPU
    fits: bool | None = None
    shortage: str | None = None  # the compiler's message if the memory of the device is not sufficient


def compiled_step(config: Config, sizes: tuple[int, int]) -> CompiledStep:
    """Compiles the step for the config's topology or for this machine's devices, simulated by CPUs if too few.

    The sizes are those of the source and the target vocabulary. Raises UserError if the config does not fit the mesh or
    the compiler does not support the topology, and RunError if the compiler failed.
    """
    if config.devices.topology:
        chip_in_topology(config.devices.topology)
        check_compiler(config.devices.topology)
        return with_compiler(_compiled, config, sizes)
    return _compiled(config, sizes)


def _compiled(config: Config, sizes: tuple[int, int]) -> CompiledStep:
    """Compiles the step; for a topology, in the process that `with_compiler` starts."""
    options = config.devices
    device_memory: int | None
    if options.topology:
        if options.deterministic:
            make_deterministic()
        mesh = make_mesh(options.mesh, topology_devices(options.topology))
        compiled_for, device_memory = options.topology, chip_in_topology(options.topology).memory
    else:
        count = math.prod(size for _, size in options.mesh if size != REMAINING_DEVICES)
        mesh = make_mesh(options.mesh, simulated_devices(options.platform, count))
        device = mesh.devices.flat[0]
        simulated = " (simulated)" if device.platform == "cpu" and mesh.size > 1 else ""
        compiled_for = f"{mesh.size} x {device.device_kind}{simulated}"
        device_memory = (device.memory_stats() or {}).get("bytes_limit")
    check_divides(mesh, config, sizes)
    precision, fused = _compute_precision(config, mesh), selected_attention(config, mesh)
    network = structure(config.model, *sizes, precision, fused)
    memory, attention = memory_between_steps(network, config, mesh), str(fused or "plain")
    step = CompiledStep(compiled_for, attention, dict(mesh.shape), str(precision.products), memory, device_memory)
    return _with_figures(step, network, config, mesh, sizes[1])


def _with_figures(step: CompiledStep, network: Structure, config: Config, mesh: Mesh, vocab_size: int) -> CompiledStep:
    """Compiles the step of a network, and returns it with the figures that follow."""
    started = time.monotonic()
    try:
        compiled = compile_step(network, config, mesh)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or "hbm" not in str(error).lower():  # vector memory, say
            raise
        shortage = str(error).splitlines()[0].partition(": ")[2]
        return step._replace(compile_seconds=time.monotonic() - started, fits=False, shortage=shortage)
    seconds = time.monotonic() - started
    memory, text = memory_of_step(network, config, mesh, compiled), compiled.as_text() or ""
    kernels, accessed = read_program(text)
    return step._replace(
        kernels=kernels if mesh.devices.flat[0].platform == "gpu" else None,
        memory_by_use=memory,
        compile_seconds=seconds,
        flops=_flops(compiled, config, vocab_size, mesh),
        bytes_accessed=accessed,
        sent_bytes=sent_bytes_of(text, mesh.size) if mesh.size > 1 else 0.0,
        fits=None if step.device_memory_bytes is None else sum(memory.values()) <= step.device_memory_bytes,
    )


def _flops(compiled: jax.stages.Compiled, config: Config, vocab_size: int, mesh: Mesh) -> float:
    """Returns the operations as XLA counts them, but at least those of the model: it counts none in programs for GPUs.

    XLA counts a loop once, so the other parts of an accumulated batch and the other blocks of the loss are added.
    """
    counted, parts = (compiled.cost_analysis() or {}).get("flops", 0.0), config.training.accumulation_steps
    rows, length = config.rows_per_batch // parts, config.data.row_length
    blocks = number_of_blocks((rows, length), loss_block_size(mesh))
    loss = 3 * 2 * rows * length * config.model.embed_dim * vocab_size / mesh.size  # logits and two gradients
    model = model_flops(config, vocab_size) / mesh.size
    return max(parts * (counted + (1 - 1 / blocks) * loss), model)


_COLLECTIVE = re.compile(r" = (.*?) (all-reduce|all-gather|reduce-scatter)(?:-start)?\(.*?channel_id=(\d+)")


def sent_bytes_of(program: str, devices: int) -> float:
    """Returns the bytes that each device sends if the operations in a program's text use ring algorithms."""
    others = devices - 1
    # Bytes sent per byte of the result.
    factors = {"all-reduce": 2 * others / devices, "all-gather": others / devices, "reduce-scatter": others}
    # By channel, because some operations are listed twice.
    operations = {channel: (result, kind) for result, kind, channel in _COLLECTIVE.findall(program)}
    return sum(factors[kind] * bytes_of(result) for result, kind in operations.values())


def model_flops(config: Config, target_vocab_size: int) -> int:
    """Returns the operations of the model's matrix products in a step, on all devices together."""
    length = config.data.row_length
    return config.rows_per_batch * training_flops(config.model, target_vocab_size, length, length)


def _compute_precision(config: Config, mesh: Mesh) -> Precision:
    """Returns the types in which the config's platform would compute, even if CPUs simulate its devices."""
    precision = config.devices.precision
    if mesh.devices.flat[0].platform == "cpu" and config.devices.platform in ("gpu", "tpu"):
        return FLOAT32 if precision == "float32" else BFLOAT16
    return compute_precision(precision, mesh)
