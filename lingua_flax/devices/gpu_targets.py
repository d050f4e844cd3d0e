"""NVIDIA GPUs for which programs can be compiled, as XLA's compiler describes them."""

from pathlib import Path
from string import Template
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
    template = Template((Path(__file__).parent / "gpu_target.textproto").read_text(encoding="utf-8"))
    own = {"major": major, "minor": minor, "feature": feature, "bandwidth": int(gpu.bytes_per_second)}
    return template.substitute(gpu._asdict() | own)
