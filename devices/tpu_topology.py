"""TPUs that are not here: their compiler, libtpu, compiles for them on any machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from host.errors import UserError


class Chip(NamedTuple):
    """A TPU chip's published figures: peak rate in bfloat16 (FLOP/s), memory bandwidth (bytes/s), memory (bytes), and
    bandwidth of its links to other chips, both directions together (bytes/s); https://cloud.google.com/tpu/docs."""

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
# What libtpu is to be told so that it compiles and looks for no TPU; the type named here limits nothing.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # by several processes at once: none takes hold of a TPU
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


def quiet_without_tpu() -> None:
    """Keeps libtpu, where it is installed and there is no TPU, from writing six lines about that to standard error."""
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1":  # set by JAX when it is imported and sees no TPU
        for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_LOG_DIR"):
            os.environ.setdefault(name, _ENVIRONMENT[name])


def chip_in_topology(topology: str) -> Chip:
    """The chips that a topology such as "v5e:2x4" consists of.

    Raises:
      UserError: there is no such kind of chip here, or the topology is not written like that.
    """
    kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)+", shape):
        kinds = ", ".join(CHIPS)
        raise UserError(
            f'devices.topology must be a kind of TPU ({kinds}) and a shape, such as v5e:2x4, got "{topology}"'
        )
    return CHIPS[kind]


def check_tpu_compiler() -> None:
    """Raises UserError where libtpu is not installed."""
    if not importlib.util.find_spec("libtpu"):
        raise UserError("devices.topology needs libtpu, the TPU's compiler: pip install -e '.[tpu]'; it needs no TPU")


@contextlib.contextmanager
def tpu_compiler_environment() -> Iterator[None]:
    """Processes started within inherit what `topology_devices` needs."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def topology_devices(topology: str) -> list[jax.Device]:
    """The devices of a topology, for which programs can be compiled.

    Called in a process that was started within `tpu_compiler_environment`.

    Raises:
      UserError: the compiler knows no such topology.
    """
    options: dict[str, Any] = {}
    if set(topology.partition(":")[2].split("x")) == {"1"}:  # a host with a single chip
        options["chips_per_host_bounds"] = [1, 1, 1]
    if topology.startswith("v4:"):  # JAX wants the two cores of a chip to be one device
        options["chip_config_name"] = "megacore"
    try:
        return list(topologies.get_topology_desc(topology, "tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition(": ")[2].splitlines()[0]
        raise UserError(f"devices.topology {topology}: the TPU's compiler refuses it ({reason})") from error
