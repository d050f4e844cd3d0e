"""The memory that a training step needs on each device."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from lingua_flax.data.batch import Batch
from lingua_flax.devices.sharding import row_sharding
from lingua_flax.host.errors import RunError
from lingua_flax.model.transformer import Structure
from lingua_flax.options.schema import Config
from lingua_flax.training.state import initial_state, state_shardings
from lingua_flax.training.step import make_train_step


class DeviceMemory(NamedTuple):
    """Bytes on each device during a step, computed from the shapes and the mesh except for `activations`.

    These include gradients and everything else that a step needs temporarily, as reported for the compiled program;
    they are None if unknown.
    """

    parameters: int
    ema_params: int
    optimizer: int
    batch: int
    activations: int | None = None

    @property
    def total(self) -> int:
        """The sum of all sizes that are known."""
        return sum(filter(None, self))

    def __str__(self) -> str:
        names = ("parameters", "ema_params", "optimizer", "batch", "activations and gradients")
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in zip(names, self, strict=True) if size)


def memory_between_steps(network: Structure, config: Config, mesh: Mesh) -> DeviceMemory:
    """Returns the memory in use on each device before a step runs: the training state and a batch."""
    state = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    sizes = jax.tree.map(_shard_bytes, state, state_shardings(network, config, mesh))
    batch = [_shard_bytes(leaf, row_sharding(mesh)) for leaf in batch_shapes(config)]
    parts = (sizes.params, sizes.ema_params, sizes.optimizer, batch)
    return DeviceMemory(*(sum(jax.tree.leaves(part)) for part in parts))


def compile_step(network: Structure, config: Config, mesh: Mesh) -> jax.stages.Compiled:
    """Compiles the step for the mesh, without running it or allocating its arrays."""
    state = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    num_steps = config.training.num_steps or 1  # None if given in epochs; a constant, which takes no memory
    step = make_train_step(network, config, num_steps, mesh)
    return step.lower(state, batch_shapes(config)).compile()


def memory_of_step(network: Structure, config: Config, mesh: Mesh, compiled: jax.stages.Compiled) -> DeviceMemory:
    """Returns the memory that each device needs during a step compiled for the mesh."""
    between_steps = memory_between_steps(network, config, mesh)
    analysis = compiled.memory_analysis()
    if analysis is None:
        return between_steps
    new_outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes  # not written over donated inputs
    return between_steps._replace(activations=analysis.temp_size_in_bytes + max(0, new_outputs))


@contextlib.contextmanager
def explain_out_of_memory(network: Structure, config: Config, mesh: Mesh) -> Iterator[None]:
    """Turns an out-of-memory error in the block into a RunError that states what a step needs and how to reduce it."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        needed = memory_between_steps(network, config, mesh)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            needed = memory_of_step(network, config, mesh, compile_step(network, config, mesh))
        state_bytes = needed.parameters + needed.ema_params + needed.optimizer
        remedies = [
            "lower training.tokens_per_batch or raise training.accumulation_steps",
            'shard parameters and optimizer with devices.mesh.fsdp, or set optimizer.name to "adafactor"',
        ]
        if (needed.activations or 0) < 2 * state_bytes:  # then most of them are gradients
            remedies.reverse()
        raise RunError(
            f"out of memory: a step needs {format_bytes(needed.total)} on each device ({needed}); "
            f"{', or '.join(remedies)}. Run the same command with --dry-run to see what a change would save"
        ) from error


def format_bytes(size: float) -> str:
    """Formats a size with a decimal unit: 1,234,567 -> 1.2 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def batch_shapes(config: Config) -> Any:
    """Returns the shapes of a batch of this config as jax.ShapeDtypeStructs."""
    shape = jax.ShapeDtypeStruct((config.rows_per_batch, config.data.row_length), jnp.int32)
    return Batch._make([shape] * len(Batch._fields))


def _shard_bytes(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> int:
    return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
