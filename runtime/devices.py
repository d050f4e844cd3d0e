"""Which devices compute, how arrays lie on them, and in which precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from configs.errors import UserError
from configs.schema import ComputeConfig, DevicesConfig


def select_platform(platform: str) -> None:
    """Makes JAX use one kind of device; called before the first array is made.

    Raises:
      UserError: there is no such device here.
    """
    if platform != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(platform, platform))
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where cuda is named and its plugin not installed
        raise UserError(
            f"devices.platform {platform}: JAX finds none on this machine; "
            "use auto or cpu, or install the extra for it (pip install -e '.[cuda]' or '.[tpu]')"
        ) from error


def make_mesh(config: DevicesConfig) -> Mesh:
    """The mesh of devices: axis "data" shares out the rows of a batch.

    Raises:
      UserError: there are fewer devices than asked for.
    """
    devices = jax.devices()
    size = len(devices) if config.mesh.data == -1 else config.mesh.data
    if size > len(devices):
        raise UserError(f"devices.mesh.data is {size}, but there are only {len(devices)} devices")
    return jax.make_mesh((size,), ("data",), axis_types=(AxisType.Auto,), devices=devices[:size])


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device: parameters, optimizer, metrics."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """The first dimension shared out along "data": batches."""
    return NamedSharding(mesh, PartitionSpec("data"))


def compute_dtype(config: ComputeConfig) -> jnp.dtype:
    """Type of activations: as asked for, else bfloat16 where the hardware multiplies it fast."""
    name = config.precision
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(name)
