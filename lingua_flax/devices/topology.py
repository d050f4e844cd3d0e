"""Compiling for TPUs and GPUs that are not attached: their compilers run on any machine."""

import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
from jax.experimental import topologies

from lingua_flax.devices.gpu_targets import GPUS, target_config
from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.host.workers import WorkerPool

Result = TypeVar("Result")


class Chip(NamedTuple):
    """The published figures of a TPU chip (https://cloud.google.com/tpu/docs) or a GPU (NVIDIA's data sheets)."""

    flops_per_second: float  # peak rate in bfloat16, or in float32 where bfloat16 is not used
    bytes_per_second: float  # between the chip and its memory
    memory: int  # that programs may use, bytes
    link_bytes_per_second: float  # to and from other chips together


def _gpu(kind: str, flops_per_second: float, link_bytes_per_second: float) -> Chip:
    gpu = GPUS[kind]
    by_default = int(0.75 * gpu.memory)  # the share that JAX reserves, unless XLA_PYTHON_CLIENT_MEM_FRACTION is set
    return Chip(flops_per_second, gpu.bytes_per_second, by_default, link_bytes_per_second)


CHIPS = {
    "v4": Chip(275e12, 1228e9, 32 * 2**30, 300e9),
    "v5e": Chip(197e12, 819e9, 16 * 2**30, 400e9),
    "v5p": Chip(459e12, 2765e9, 95 * 2**30, 1200e9),
    "v6e": Chip(918e12, 1640e9, 32 * 2**30, 800e9),
    "h100": _gpu("h100", 989e12, 900e9),
    "a100": _gpu("a100", 312e12, 600e9),
    "t4": _gpu("t4", 8.1e12, 32e9),
}
_COMPILER_ENDED = "the compiler of devices.topology has failed and ended its process; any output above may say why"
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


def is_gpu(topology: str) -> bool:
    """Returns whether a topology, such as "h100:8", is of GPUs rather than TPUs."""
    return topology.partition(":")[0] in GPUS


def chip_in_topology(topology: str) -> Chip:
    """Returns the figures of the chips of a topology such as "v5e:2x4" or "h100:8".

    Raises UserError if CHIPS has no such kind of chip, or if the topology is malformed.
    """
    kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"[1-9]\d*" if is_gpu(topology) else r"\d+(x\d+)+", shape):
        tpus, gpus = ", ".join(kind for kind in CHIPS if kind not in GPUS), ", ".join(GPUS)
        raise UserError(
            f"devices.topology must be a kind of TPU ({tpus}) and a shape, such as v5e:2x4, or a kind of GPU ({gpus}) "
            f'and a number, such as h100:8, got "{topology}"'
        )
    return CHIPS[kind]


def check_compiler(topology: str) -> None:
    """Raises UserError if the compiler for a topology is not installed."""
    module, name, device, extra = "libtpu", "libtpu, the TPU's compiler", "TPU", "tpu"
    if is_gpu(topology):
        module, name, device, extra = "jax_cuda13_plugin", "the compiler for NVIDIA GPUs", "GPU", "cuda"
    if not importlib.util.find_spec(module):
        raise UserError(f"devices.topology needs {name}: {install_command(extra)}; it needs no {device}")


def with_compiler(function: Callable[..., Result], *arguments: Any) -> Result:
    """Returns the result of function(*arguments), called in a new process that may use `topology_devices`.

    libtpu needs an environment of its own, ends its process on an internal error, and cannot be interrupted by signals.
    Raises RunError if the compiler ended the process.
    """
    previous = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    os.environ.update(_ENVIRONMENT)
    try:
        with WorkerPool(1, _COMPILER_ENDED) as process:
            return process.submit(function, *arguments).result()
    finally:
        for name in _ENVIRONMENT:
            del os.environ[name]
        os.environ.update(previous)


def topology_devices(topology: str) -> list[jax.Device]:
    """Returns the devices of a topology, for which programs can be compiled, in a function called by `with_compiler`.

    Raises UserError if the compiler does not support the topology.
    """
    kind, _, shape = topology.partition(":")
    options: dict[str, Any] = {}
    if is_gpu(topology):
        options = {"target_config": target_config(kind), "topology": f"1x1x{shape}"}
    elif set(shape.split("x")) == {"1"}:  # a host with a single chip
        options["chips_per_host_bounds"] = [1, 1, 1]
    if kind == "v4":  # JAX expects the two cores of a chip to be one device
        options["chip_config_name"] = "megacore"
    try:
        return list(topologies.get_topology_desc(topology, "cuda" if is_gpu(topology) else "tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition(": ")[2].splitlines()[0]
        raise UserError(f"devices.topology {topology}: the compiler refuses it ({reason})") from error
