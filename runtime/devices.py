"""Which devices compute, how arrays lie on them, and in which precision."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from configs.errors import UserError
from configs.schema import REST, Config, MeshConfig, ProcessOptions
from runtime.processes import join_processes
from runtime.topology import quiet_without_tpu

MESH_AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")  # of the mesh, sharing out the rows of a batch
# The axis of the mesh that shares out each logical axis of the parameters (model/parameters.py).
SHARED_BY = {"vocab": "tensor", "heads": "tensor", "mlp": "tensor", "embed": "fsdp"}


def start_devices(platform: str, processes: ProcessOptions = ProcessOptions()) -> None:
    """Makes JAX use one kind of device, and those of all processes; called before the first array is made.

    Raises:
      UserError: there is no such device here, or the other processes were not found.
    """
    quiet_without_tpu()
    if platform != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(platform, platform))
    join_processes(processes, platform)
    devices_of(platform)


def devices_of(platform: str) -> list[jax.Device]:
    """All devices of a kind, those of other processes too; "auto": the default ones.

    Raises:
      UserError: there is none here.
    """
    quiet_without_tpu()
    try:
        return jax.devices(None if platform == "auto" else platform)
    except (RuntimeError, AssertionError) as error:  # the latter where cuda is named and its plugin not installed
        raise UserError(
            f"devices.platform {platform}: JAX finds none on this machine; "
            "use auto or cpu, or install the extra for it (pip install -e '.[cuda]' or '.[tpu]')"
        ) from error


def start_simulated(platform: str, count: int) -> list[jax.Device]:
    """At least so many devices: those here where there are enough of the kind, else CPUs that are simulated, for which
    programs can be compiled; called before the first array is made."""
    jax.config.update("jax_num_cpu_devices", count)
    with contextlib.suppress(UserError):
        start_devices(platform)
        if len(jax.devices()) >= count:
            return jax.devices()
    jax.config.update("jax_platforms", "cpu")
    return jax.devices("cpu")


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
    others = math.prod(size for size in asked if size != REST)
    if REST in asked and devices % others:
        raise UserError(f"{_asked_for(config)}: {others} does not divide the {devices} devices there are")
    return tuple(devices // others if size == REST else size for size in asked)


def _asked_for(config: MeshConfig) -> str:
    return "devices.mesh " + ", ".join(f"{axis} {getattr(config, axis)}" for axis in MESH_AXES)


def rows_for(mesh: Mesh, rows: int) -> int:
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


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device: metrics, counters."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """The first dimension shared out: batches."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def by_axes(mesh: Mesh, axes: PartitionSpec, *, gathered: bool = False) -> NamedSharding:
    """Where a parameter lies whose axes have these logical names; gathered: whole along "fsdp"."""
    places = [SHARED_BY[name] if name else None for name in axes]
    return NamedSharding(mesh, PartitionSpec(*(None if gathered and place == "fsdp" else place for place in places)))


def on_devices(tree: Any, sharding: Any) -> Any:
    """Arrays of the host, the same in every process, put where the sharding, or a tree of them, says."""

    def put(leaf: Any, place: NamedSharding) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, place, leaf.__getitem__)

    if isinstance(sharding, NamedSharding):
        return jax.tree.map(lambda leaf: put(leaf, sharding), tree)
    return jax.tree.map(put, tree, sharding)


def placed_shapes(tree: Any, sharding: Any) -> Any:
    """What `on_devices` would make of arrays of these shapes, as jax.ShapeDtypeStructs."""

    def placed(leaf: Any, place: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    if isinstance(sharding, NamedSharding):
        return jax.tree.map(lambda leaf: placed(leaf, sharding), tree)
    return jax.tree.map(placed, tree, sharding)


def rows_kept(mesh: Mesh, rows: int) -> np.ndarray:
    """Which rows of a batch lie on devices of this process, ascending."""
    shards = by_rows(mesh).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in shards]))


def place_rows(tree: Any, mesh: Mesh, kept: np.ndarray, rows: int) -> Any:
    """Puts a batch on the devices, of which each process gives only the rows that it keeps; does not wait for it.

    Args:
      tree: arrays [len(kept), ...].
      kept: as `rows_kept`.
      rows: of the whole batch.
    """
    sharding = by_rows(mesh)
    if len(kept) == rows:
        return jax.device_put(tree, sharding)

    def put(leaf: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            first = np.searchsorted(kept, index[0].start)
            return leaf[first : first + index[0].stop - index[0].start]

        return jax.make_array_from_callback((rows, *leaf.shape[1:]), sharding, shard)

    return jax.tree.map(put, tree)


def compute_dtype(precision: str, mesh: Mesh) -> jnp.dtype:
    """Type of activations on these devices: as asked for, or for "auto" bfloat16 where they multiply it fast."""
    if precision == "auto":
        device = mesh.devices.flat[0]
        precision = "float32" if device.platform == "cpu" or _lacks_bfloat16(device) else "bfloat16"
    return jnp.dtype(precision)


def pads_to_longest(padding: str, mesh: Mesh) -> bool:
    """Whether sentences are padded to the longest of all, as asked for, or for "auto" where compiling takes long."""
    return padding == "longest" or (padding == "auto" and mesh.devices.flat[0].platform != "cpu")


def _lacks_bfloat16(device: jax.Device) -> bool:
    """Whether this is an NVIDIA GPU older than Ampere, such as the T4."""
    return float(getattr(device, "compute_capability", "8.0")) < 8
