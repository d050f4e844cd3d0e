"""Which devices compute, how arrays lie on them, and in which precision."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from devices.processes import join_processes
from devices.tpu_topology import quiet_without_tpu
from host.errors import UserError
from options.schema import ProcessOptions


def initialize_devices(platform: str, processes: ProcessOptions = ProcessOptions()) -> None:
    """Makes JAX use one kind of device, and those of all processes; called before the first array is made.

    Raises:
      UserError: there is no such device here, or the other processes were not found.
    """
    quiet_without_tpu()
    if platform != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(platform, platform))
    join_processes(processes, platform)
    available_devices(platform)


def available_devices(platform: str) -> list[jax.Device]:
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


def simulated_devices(platform: str, count: int) -> list[jax.Device]:
    """At least so many devices: those here where there are enough of the kind, else CPUs that are simulated, for which
    programs can be compiled; called before the first array is made."""
    jax.config.update("jax_num_cpu_devices", count)
    with contextlib.suppress(UserError):
        initialize_devices(platform)
        if len(jax.devices()) >= count:
            return jax.devices()
    jax.config.update("jax_platforms", "cpu")
    return jax.devices("cpu")


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
