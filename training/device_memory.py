"""What a training step needs: memory on each device, operations, and bytes that it moves."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from data.batch import Batch
from devices.sharding import row_sharding
from host.errors import RunError
from model.transformer import Structure
from options.schema import Config
from training.step import initial_state, make_train_step, state_shardings


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """Bytes on each device during a step.

    parameters, average, optimizer and batch follow from the shapes and the mesh; activations, with the gradients and
    all else that a step needs for a while, is the compiled program's own account, None where there is none.
    """

    parameters: int
    average: int
    optimizer: int
    batch: int
    activations: int | None = None

    @property
    def total(self) -> int:
        """All that is known."""
        return self.parameters + self.average + self.optimizer + self.batch + (self.activations or 0)

    def __str__(self) -> str:
        known = {name: size for name, size in dataclasses.asdict(self).items() if size}
        known = {name.replace("activations", "activations and gradients"): size for name, size in known.items()}
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in known.items())


def memory_between_steps(network: Structure, config: Config, mesh: Mesh) -> DeviceMemory:
    """What lies on each device before a step is run."""
    state = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    places = state_shardings(network, config, mesh)
    rows = row_sharding(mesh)
    return DeviceMemory(
        parameters=_on_each(state.params, places.params),
        average=_on_each(state.average, places.average),
        optimizer=_on_each(state.optimizer, places.optimizer),
        batch=sum(_bytes(leaf, rows) for leaf in batch_shapes(config)),
    )


def compile_step(network: Structure, config: Config, mesh: Mesh, unroll: int = 1) -> jax.stages.Compiled:
    """The training step, compiled for the mesh; nothing is run, nor even allocated.

    Args:
      unroll: how many parts of an accumulated batch one turn of its loop takes.
    """
    state = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    num_steps = config.training.num_steps or 1  # where it is given in epochs: a constant, which takes no memory
    step = make_train_step(network, config, num_steps, mesh, unroll)
    return step.lower(state, batch_shapes(config)).compile()


def memory_of_step(network: Structure, config: Config, mesh: Mesh, compiled: jax.stages.Compiled) -> DeviceMemory:
    """What each device needs during a step that was compiled for the mesh."""
    lasting = memory_between_steps(network, config, mesh)
    found = compiled.memory_analysis()
    if found is None:
        return lasting
    new = found.output_size_in_bytes - found.alias_size_in_bytes  # what does not take the place of an old array
    return dataclasses.replace(lasting, activations=found.temp_size_in_bytes + max(0, new))


@contextlib.contextmanager
def explain_out_of_memory(network: Structure, config: Config, mesh: Mesh) -> Iterator[None]:
    """Raises RunError where a device lacks memory for what is done here, with what is needed and what helps."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        needed = memory_between_steps(network, config, mesh)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            needed = memory_of_step(network, config, mesh, compile_step(network, config, mesh))
        for_state = needed.parameters + needed.average + needed.optimizer
        smaller_batch = "lower training.tokens_per_batch or raise training.accumulation_steps"
        smaller_state = (
            'share parameters and optimizer out with devices.mesh.fsdp, or set optimizer.name to "adafactor"'
        )
        first, second = smaller_batch, smaller_state
        if (needed.activations or 0) < 2 * for_state:  # then most of those are gradients
            first, second = second, first
        raise RunError(
            f"out of memory: a step needs {format_bytes(needed.total)} on each device ({needed}); "
            f"{first}, or {second}. "
            "The same command with --dry-run tells what a change would save"
        ) from error


def format_bytes(size: float) -> str:
    """1,234,567 -> 1.2 MB"""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def batch_shapes(config: Config) -> Any:
    """A batch of this config as jax.ShapeDtypeStruct."""
    shape = jax.ShapeDtypeStruct((config.rows_per_batch, config.data.row_length), jnp.int32)
    return Batch._make([shape] * len(Batch._fields))


def _on_each(tree: Any, places: Any) -> int:
    return sum(jax.tree.leaves(jax.tree.map(_bytes, tree, places)))


def _bytes(leaf: jax.ShapeDtypeStruct, place: jax.sharding.Sharding) -> int:
    return math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize
