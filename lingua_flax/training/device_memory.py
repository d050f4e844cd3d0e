"""The memory that a training step needs on each device."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

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

ACTIVATIONS = "activations and gradients"  # and everything else that a step needs temporarily


def memory_between_steps(network: Structure, config: Config, mesh: Mesh) -> dict[str, int]:
    """Returns the bytes in use on each device before a step runs, by what they hold: the training state and a batch."""
    sizes = jax.tree.map(_shard_bytes, _state(network, config), state_shardings(network, config, mesh))
    parts = {
        "parameters": sizes.params,
        "moving average": sizes.ema_params,
        "optimizer": sizes.optimizer,
        "batch": [_shard_bytes(leaf, row_sharding(mesh)) for leaf in _batch(config)],
    }
    return {name: sum(jax.tree.leaves(part)) for name, part in parts.items() if part is not None}


def compile_step(network: Structure, config: Config, mesh: Mesh) -> jax.stages.Compiled:
    """Compiles the step for the mesh, without running it or allocating its arrays."""
    num_steps = config.training.num_steps or 1  # None if given in epochs; a constant, which takes no memory
    step = make_train_step(network, config, num_steps, mesh)
    return step.lower(_state(network, config), _batch(config)).compile()


def memory_of_step(network: Structure, config: Config, mesh: Mesh, compiled: jax.stages.Compiled) -> dict[str, int]:
    """Returns the bytes that each device needs during a step, by what they hold."""
    analysis: Any = compiled.memory_analysis()
    new_outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes  # not written over donated inputs
    temporary = analysis.temp_size_in_bytes + max(0, new_outputs)
    return memory_between_steps(network, config, mesh) | {ACTIVATIONS: temporary}


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
        state_bytes = sum(size for name, size in needed.items() if name not in ("batch", ACTIVATIONS))
        remedies = [
            "lower training.tokens_per_batch or raise training.accumulation_steps",
            'shard parameters and optimizer with devices.mesh.fsdp, or set optimizer.name to "adafactor"',
        ]
        if needed.get(ACTIVATIONS, 0) < 2 * state_bytes:  # then most of them are gradients
            remedies.reverse()
        sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in needed.items())
        raise RunError(
            f"out of memory: a step needs {format_bytes(sum(needed.values()))} on each device ({sizes}); "
            f"{', or '.join(remedies)}. Run the same command with --dry-run to see what a change would save"
        ) from error


def format_bytes(size: float) -> str:
    """Formats a size with a decimal unit: 1,234,567 -> 1.2 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def _state(network: Structure, config: Config) -> Any:
    return jax.eval_shape(lambda params: initial_state(params, config), network.params)


def _batch(config: Config) -> Any:
    shape = jax.ShapeDtypeStruct((config.rows_per_batch, config.data.row_length), jnp.int32)
    return Batch._make([shape] * len(Batch._fields))


def _shard_bytes(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> int:
    return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
