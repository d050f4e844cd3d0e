"""How arrays are sharded across the mesh, and how they get from the host to its devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingua_flax.devices.mesh import ROW_AXES

# The mesh axis that shards each logical axis of the parameters (see model/parameters.py).
MESH_AXIS_OF = {"vocab": "tensor", "heads": "tensor", "mlp": "tensor", "embed": "fsdp"}


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays that are the same on every device: metrics and counters."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of batches, along their first dimension."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def put_on_devices(tree: Any, sharding: Any) -> Any:
    """Puts a tree of host arrays, the same in every process, on the devices, with one sharding or a tree of them."""

    def put(leaf: Any, leaf_sharding: NamedSharding) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, leaf_sharding, leaf.__getitem__)

    return jax.tree.map(put, tree, jax.tree.broadcast(sharding, tree))


def local_rows(mesh: Mesh, rows: int) -> np.ndarray:
    """Returns the ascending indices of the rows of a batch that are stored on devices of this process."""
    shards = row_sharding(mesh).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in shards]))
