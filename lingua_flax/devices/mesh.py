"""The device mesh, and the checks that its axes divide the dimensions that they shard."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted
from lingua_flax.options.schema import REMAINING_DEVICES, Config, MeshConfig

MESH_AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")  # the axes that shard the rows of a batch
_AUTO = (AxisType.Auto,) * len(MESH_AXES)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh with the axes "data", "fsdp" and "tensor", by default chosen from all devices of the run.

    "data" shards the rows of a batch, "fsdp" rows and parameters, and "tensor" the parameters of each layer and the
    values computed from them. Raises UserError if the sizes of the axes do not fit the number of devices.
    """
    devices = devices or jax.devices()
    shape = _mesh_shape(config, len(devices))
    size = math.prod(shape)
    if size > len(devices):
        raise UserError(
            f"{_requested_mesh(config)} needs {counted(size, 'device')}; available: {len(devices)}. "
            "Use --devices.mesh.data -1 to take all devices that the other axes leave"
        )
    if size < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"{_requested_mesh(config)} uses {counted(size, 'device')}, but the {jax.process_count()} processes have "
            f"{len(devices)}; a run of several processes must use all devices"
        )
    if size < len(devices):  # on a TPU, jax.make_mesh accepts only rectangles of chips
        return Mesh(np.reshape(devices[:size], shape), MESH_AXES, axis_types=_AUTO)
    return jax.make_mesh(shape, MESH_AXES, axis_types=_AUTO, devices=devices)


def mesh_of_one(device: jax.Device) -> Mesh:
    """Returns a mesh with the same axes that consists of a single device, such as one of several in a run."""
    return Mesh(np.reshape([device], (1,) * len(MESH_AXES)), MESH_AXES, axis_types=_AUTO)


def _mesh_shape(config: MeshConfig, num_devices: int) -> tuple[int, ...]:
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    fixed = math.prod(size for size in sizes if size != REMAINING_DEVICES)
    if REMAINING_DEVICES in sizes and num_devices % fixed:
        raise UserError(f"{_requested_mesh(config)}: {fixed} does not divide the {num_devices} devices")
    return tuple(num_devices // fixed if size == REMAINING_DEVICES else size for size in sizes)


def _requested_mesh(config: MeshConfig) -> str:
    return "devices.mesh " + ", ".join(f"{axis} {getattr(config, axis)}" for axis in MESH_AXES)


def round_up_to_row_shards(mesh: Mesh, rows: int) -> int:
    """Rounds a number of rows up to a multiple of the number of row shards."""
    shards = math.prod(mesh.shape[axis] for axis in ROW_AXES)
    return -(-rows // shards) * shards


def check_divides(mesh: Mesh, config: Config, vocabularies: Sequence[int] = ()) -> None:
    """Raises UserError if an axis of the mesh does not divide a dimension that it shards.

    These are those of the batch and the layers and, once they are known by the tokenizer, the sizes of vocabularies.
    """
    parts = config.training.accumulation_steps
    rows = config.rows_per_batch // parts
    unit, divisor = ("batch", "") if parts == 1 else ("accumulation step", " / training.accumulation_steps")
    formula = f"training.tokens_per_batch / data.row_length{divisor}"
    _check_divides(mesh, ROW_AXES, rows, f"the {counted(rows, 'row')} per {unit} ({formula})")
    for axis, option in (("fsdp", "embed_dim"), ("tensor", "num_heads"), ("tensor", "mlp_dim")):
        size = getattr(config.model, option)
        _check_divides(mesh, [axis], size, f"model.{option} {size}")
    for size in vocabularies:
        _check_divides(mesh, ["tensor"], size, f"the {size} pieces of tokenizer.vocab_size")


def _check_divides(mesh: Mesh, axes: Sequence[str], count: int, description: str) -> None:
    size = math.prod(mesh.shape[axis] for axis in axes)
    if count % size:
        names = " times ".join(f"devices.mesh.{axis} {mesh.shape[axis]}" for axis in axes if mesh.shape[axis] > 1)
        raise UserError(f"{names} does not divide {description}")
