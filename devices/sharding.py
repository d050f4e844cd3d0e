"""Which devices compute, how arrays lie on them, and in which precision."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from devices.mesh import ROW_AXES

# The axis of the mesh that shares out each logical axis of the parameters (model/parameters.py).
SHARED_BY = {"vocab": "tensor", "heads": "tensor", "mlp": "tensor", "embed": "fsdp"}


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device: metrics, counters."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharding(mesh: Mesh) -> NamedSharding:
    """The first dimension shared out: batches."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def parameter_sharding(mesh: Mesh, axes: PartitionSpec, *, gathered: bool = False) -> NamedSharding:
    """Where a parameter lies whose axes have these logical names; gathered: whole along "fsdp"."""
    places = [SHARED_BY[name] if name else None for name in axes]
    return NamedSharding(mesh, PartitionSpec(*(None if gathered and place == "fsdp" else place for place in places)))


def put_on_devices(tree: Any, sharding: Any) -> Any:
    """Arrays of the host, the same in every process, put where the sharding, or a tree of them, says."""

    def put(leaf: Any, place: NamedSharding) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, place, leaf.__getitem__)

    if isinstance(sharding, NamedSharding):
        return jax.tree.map(lambda leaf: put(leaf, sharding), tree)
    return jax.tree.map(put, tree, sharding)


def sharded_shapes(tree: Any, sharding: Any) -> Any:
    """What `put_on_devices` would make of arrays of these shapes, as jax.ShapeDtypeStructs."""

    def placed(leaf: Any, place: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    if isinstance(sharding, NamedSharding):
        return jax.tree.map(lambda leaf: placed(leaf, sharding), tree)
    return jax.tree.map(placed, tree, sharding)


def local_rows(mesh: Mesh, rows: int) -> np.ndarray:
    """Which rows of a batch lie on devices of this process, ascending."""
    shards = row_sharding(mesh).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in shards]))


def put_rows_on_devices(tree: Any, mesh: Mesh, kept: np.ndarray, rows: int) -> Any:
    """Puts a batch on the devices, of which each process gives only the rows that it keeps; does not wait for it.

    Args:
      tree: arrays [len(kept), ...].
      kept: as `local_rows`.
      rows: of the whole batch.
    """
    sharding = row_sharding(mesh)
    if len(kept) == rows:
        return jax.device_put(tree, sharding)

    def put(leaf: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            first = np.searchsorted(kept, index[0].start)
            return leaf[first : first + index[0].stop - index[0].start]

        return jax.make_array_from_callback((rows, *leaf.shape[1:]), sharding, shard)

    return jax.tree.map(put, tree)
