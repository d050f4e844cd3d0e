"""Compiling for TPUs that are not attached: their compiler, libtpu, runs on any machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command


class Chip(NamedTuple):
    """The published figures of a TPU chip (https://cloud.google.com/tpu/docs).

    Attributes:
      flops_per_second: peak rate in bfloat16, FLOP/s.
      bytes_per_second: memory bandwidth, bytes/s.
      memory: memory, bytes.
      link_bytes_per_second: bandwidth of the links to other chips, both directions together, bytes/s.
    """

    flops_per_second: float
    bytes_per_second: float
    memory: int
    link_bytes_per_second: float


CHIPS = {
    "v4": Chip(275e12, 1228e9, 32 * 2**30, 300e9),
    "v5e": Chip(197e12, 819e9, 16 * 2**30, 400e9),
    "v5p": Chip(459e12, 2765e9, 95 * 2**30, 1200e9),
    "v6e": Chip(918e12, 1640e9, 32 * 2**30, 800e9),
}
# Makes libtpu compile without looking for a TPU; the accelerator type does not restrict the topologies.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # by several processes at once: none of them uses a TPU
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


def silence_libtpu() -> None:
    """Keeps libtpu, if it is installed on a machine without a TPU, from writing to standard error and leaving logs."""
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1":  # set by JAX on import if it finds no TPU
        for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_LOG_DIR", "TPU_MIN_LOG_LEVEL"):
            os.environ.setdefault(name, _ENVIRONMENT[name])


def chip_in_topology(topology: str) -> Chip:
    """Returns the figures of the chips of a topology such as "v5e:2x4".

    Raises UserError if CHIPS has no such kind of chip, or if the topology is malformed.
    """
    kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)+", shape):
        kinds = ", ".join(CHIPS)
        raise UserError(
            f'devices.topology must be a kind of TPU ({kinds}) and a shape, such as v5e:2x4, got "{topology}"'
        )
    return CHIPS[kind]


def check_tpu_compiler() -> None:
    """Raises UserError if libtpu is not installed."""
    if not importlib.util.find_spec("libtpu"):
        raise UserError(f"devices.topology needs libtpu, the TPU's compiler: {install_command('tpu')}; it needs no TPU")


@contextlib.contextmanager
def tpu_compiler_environment() -> Iterator[None]:
    """Sets the environment that `topology_devices` needs, for processes started within the context to inherit."""
    previous = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name in _ENVIRONMENT:
            del os.environ[name]
        os.environ.update(previous)


def topology_devices(topology: str) -> list[jax.Device]:
    """Returns the devices of a topology, for which programs can be compiled.

    Must be called in a process that was started within `tpu_compiler_environment`. Raises UserError if the compiler
    does not support the topology.
    """
    options: dict[str, Any] = {}
    if set(topology.partition(":")[2].split("x")) == {"1"}:  # a host with a single chip
        options["chips_per_host_bounds"] = [1, 1, 1]
    if topology.startswith("v4:"):  # JAX expects the two cores of a chip to be one device
        options["chip_config_name"] = "megacore"
    try:
        return list(topologies.get_topology_desc(topology, "tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition(": ")[2].splitlines()[0]
        raise UserError(f"devices.topology {topology}: the TPU's compiler refuses it ({reason})") from error
