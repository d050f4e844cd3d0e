"""Which devices compute, how arrays lie on them, and in which precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from host.errors import UserError
from options.schema import REMAINING_DEVICES, Config, MeshConfig

MESH_AXES = ("data", "fsdp", "tensor")


ROW_AXES = ("data", "fsdp")  # of the mesh, sharing out the rows of a batch


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of devices: "data" shares out the rows of a batch, "fsdp" rows and parameters, "tensor" the parameters
    of each layer with what is computed from them.

    Args:
      devices: those to choose from, by default all there are.

    Raises:
      UserError: there are not as many devices as asked for.
    """
    devices = devices or jax.devices()
    shape = _mesh_shape(config, len(devices))
    size = math.prod(shape)
    if size > len(devices):
        raise UserError(
            f"{_asked_for(config)} needs {size} devices, but there are only {len(devices)}; "
            "--devices.mesh.data -1 takes those that the other axes leave"
        )
    if size < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"{_asked_for(config)} takes {size} devices, but the {jax.process_count()} processes have {len(devices)}; "
            "where there are several, the mesh has to take all"
        )
    auto = (AxisType.Auto,) * len(MESH_AXES)
    if size < len(devices):  # of a TPU's chips jax.make_mesh takes rectangles only
        return Mesh(np.reshape(devices[:size], shape), MESH_AXES, axis_types=auto)
    return jax.make_mesh(shape, MESH_AXES, axis_types=auto, devices=devices)


def _mesh_shape(config: MeshConfig, devices: int) -> tuple[int, ...]:
    """Sizes of the mesh's axes, where one may take the rest of so many devices."""
    asked = [getattr(config, axis) for axis in MESH_AXES]
    others = math.prod(size for size in asked if size != REMAINING_DEVICES)
    if REMAINING_DEVICES in asked and devices % others:
        raise UserError(f"{_asked_for(config)}: {others} does not divide the {devices} devices there are")
    return tuple(devices // others if size == REMAINING_DEVICES else size for size in asked)


def _asked_for(config: MeshConfig) -> str:
    return "devices.mesh " + ", ".join(f"{axis} {getattr(config, axis)}" for axis in MESH_AXES)


def round_up_to_row_shards(mesh: Mesh, rows: int) -> int:
    """The least number of rows from this one on that the mesh can share out."""
    shares = math.prod(mesh.shape[axis] for axis in ROW_AXES)
    return -(-rows // shares) * shares


def check_divides(mesh: Mesh, config: Config) -> None:
    """Raises UserError where an axis of the mesh does not divide what it shares out of batch and layers."""
    rows = config.rows_per_batch // config.training.accumulation_steps
    parts = " in each of training.accumulation_steps" if config.training.accumulation_steps > 1 else ""
    for axes, count, what in (
        (ROW_AXES, rows, f"the {rows} rows of data.row_length that training.tokens_per_batch makes{parts}"),
        (("fsdp",), config.model.embed_dim, f"model.embed_dim {config.model.embed_dim}"),
        (("tensor",), config.model.num_heads, f"model.num_heads {config.model.num_heads}"),
        (("tensor",), config.model.mlp_dim, f"model.mlp_dim {config.model.mlp_dim}"),
    ):
        _check_divides(mesh, axes, count, what)


def check_divides_vocabularies(mesh: Mesh, sizes: Sequence[int]) -> None:
    """Raises UserError where the mesh does not divide the vocabularies, whose sizes are known with the tokenizer."""
    for size in sizes:
        _check_divides(mesh, ("tensor",), size, f"the {size} pieces of tokenizer.vocab_size")


def _check_divides(mesh: Mesh, axes: Sequence[str], count: int, what: str) -> None:
    size = math.prod(mesh.shape[axis] for axis in axes)
    if count % size:
        names = " times ".join(f"devices.mesh.{axis} {mesh.shape[axis]}" for axis in axes if mesh.shape[axis] > 1)
        raise UserError(f"{names} does not divide {what}")
