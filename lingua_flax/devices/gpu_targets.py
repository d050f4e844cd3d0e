"""NVIDIA GPUs for which programs can be compiled, as XLA's compiler describes them."""

from typing import NamedTuple


class Gpu(NamedTuple):
    """The published figures of a GPU (its data sheet, and the CUDA C++ Programming Guide for its compute capability).

    A multiprocessor has `cores` float32 units, and at most so many threads and bytes of shared memory. Sizes are in
    bytes, the clock in GHz, and the links are NVLinks.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    cores: int
    threads: int
    shared_memory: int
    shared_memory_per_block: int
    l2_cache: int
    clock: float
    memory: int
    bytes_per_second: float
    links: int


GPUS = {
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 233472, 232448, 50 * 2**20, 1.98, 84942979072, 3352e9, 18
    ),
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 167936, 166912, 40 * 2**20, 1.41, 84942979072, 2039e9, 12
    ),
    "t4": Gpu("Tesla T4", (7, 5), 40, 64, 1024, 65536, 65536, 4 * 2**20, 1.59, 15 * 2**30, 320e9, 0),
}


def target_config(kind: str) -> str:
    """Returns the description of a GPU (XLA's GpuTargetConfigProto as text) with CUDA 13 and cuDNN 9.10."""
    gpu = GPUS[kind]
    major, minor = gpu.capability
    feature = "feature_extension: ACCELERATED_FEATURES" if gpu.capability == (9, 0) else ""
    return f"""
        platform_name: "CUDA"
        device_description_str: "{gpu.name}"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
        runtime_version {{ major: 13 minor: 0 patch: 0 }}
        gpu_device_info {{
          name: "{gpu.name}"
          device_vendor: "NVIDIA Corporation"
          cuda_compute_capability {{ major: {major} minor: {minor} {feature} }}
          platform_version: "Compute Capability {major}.{minor}"
          driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
          dnn_version: "9.10.0"
          core_count: {gpu.multiprocessors} fpus_per_core: {gpu.cores}
          threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: {gpu.threads}
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
          shared_memory_per_core: {gpu.shared_memory} shared_memory_per_block: 49152
          shared_memory_per_block_optin: {gpu.shared_memory_per_block}
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
          device_address_bits: 64 ecc_enabled: true
          l2_cache_size: {gpu.l2_cache} device_memory_size: {gpu.memory}
          memory_bandwidth: {int(gpu.bytes_per_second)} clock_rate_ghz: {gpu.clock}
          device_interconnect_info {{ active_links: {gpu.links} }}
        }}
    """
