"""The platform: the devices that JAX uses, simulated ones, and the defaults that depend on their kind."""

import contextlib
import os
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from lingua_flax.devices.compilation import Compilations, set_up_compilation
from lingua_flax.devices.processes import distributed_session, join_processes
from lingua_flax.devices.topology import silence_libtpu
from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.options.precision import BFLOAT16, BFLOAT16_PRODUCTS, FLOAT32, Precision
from lingua_flax.options.schema import ComputeConfig, ProcessOptions

# No operation whose result depends on the order of a GPU's threads, and no algorithm that is chosen by timing, which
# every process would do anew. XLA's own matrix products, written in Triton, are slow unless their tiles are chosen so;
# those of cuBLAS are not. A step of the base model takes 34.7 ms on an H200, and 36.2 ms with the defaults of XLA.
DETERMINISTIC = (
    "--xla_gpu_exclude_nondeterministic_ops=true --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
)


def initialize_devices(
    platform: str, processes: ProcessOptions = ProcessOptions(), *, deterministic: bool = True
) -> None:
    """Selects the kind of device that JAX uses and connects the processes, before the first array is created.

    With `deterministic`, GPUs compute the same bits every time, unless the environment variable XLA_FLAGS says
    otherwise. Raises UserError if this machine has no such device, if a program of the user's has made JAX use another
    kind before, or if the processes could not be connected.
    """
    silence_libtpu()
    if deterministic:
        make_deterministic()
    if platform != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(platform, platform))
    join_processes(processes, platform)
    available_devices(platform)
    if platform not in ("auto", jax.default_backend()):
        raise UserError(
            f"devices.platform {platform}: JAX uses {jax.default_backend()} in this process already; restart it (in a "
            "notebook, the kernel), or choose auto"
        )


@contextlib.contextmanager
def computing(devices: ComputeConfig, processes: ProcessOptions, only_one: str = "") -> Iterator[Compilations]:
    """Wraps what a command computes: initializes the devices, and yields the count of the programs that it compiles.

    Raises UserError if `only_one`, the reason why there must not be several processes, is given and there are.
    """
    initialize_devices(devices.platform, processes, deterministic=devices.deterministic)
    if only_one and jax.process_count() > 1:
        raise UserError(f"there are {jax.process_count()} processes, and {only_one}")
    compilations = set_up_compilation()
    with distributed_session():
        yield compilations


def make_deterministic() -> None:
    """Makes XLA compile programs for GPUs that compute the same bits every time; to be called before it is used."""
    flags = os.environ.get("XLA_FLAGS", "")
    if DETERMINISTIC not in flags:
        os.environ["XLA_FLAGS"] = f"{DETERMINISTIC} {flags}".strip()


def available_devices(platform: str) -> list[jax.Device]:
    """Returns all devices of a kind, "auto" being JAX's default; raises UserError if this machine has none."""
    silence_libtpu()
    try:
        return jax.devices(None if platform == "auto" else platform)
    except (RuntimeError, AssertionError) as error:  # AssertionError: cuda without its plugin
        raise UserError(
            f"devices.platform {platform}: JAX finds none on this machine; "
            f"use auto or cpu, or install the extra for it: {install_command('tpu' if platform == 'tpu' else 'cuda')}"
        ) from error


def simulated_devices(platform: str, count: int) -> list[jax.Device]:
    """Returns at least `count` devices of the platform, or simulated CPUs, before the first array is created."""
    jax.config.update("jax_num_cpu_devices", count)
    with contextlib.suppress(UserError):
        initialize_devices(platform)
        if len(jax.devices()) >= count:
            return jax.devices()
    jax.config.update("jax_platforms", "cpu")
    return jax.devices("cpu")


def compute_precision(precision: str, mesh: Mesh) -> Precision:
    """Returns the types to compute in; "auto" is bfloat16 on TPUs and on GPUs that multiply it fast, else float32."""
    device = mesh.devices.flat[0]
    if precision == "auto":
        precision = "float32" if device.platform == "cpu" or is_older_than_ampere(device) else "bfloat16"
    if precision == "float32":
        return FLOAT32
    return BFLOAT16_PRODUCTS if device.platform == "cpu" else BFLOAT16


def pads_to_longest(padding: str, mesh: Mesh) -> bool:
    """Returns whether to pad all sentences to the length of the longest; "auto" does so where compiling is slow."""
    return padding == "longest" or (padding == "auto" and mesh.devices.flat[0].platform != "cpu")


def is_older_than_ampere(device: jax.Device) -> bool:
    """Returns whether the device is an NVIDIA GPU older than Ampere, such as the T4, which lacks bfloat16."""
    return float(getattr(device, "compute_capability", "8.0")) < 8
