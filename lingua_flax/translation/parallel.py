"""Running a function on several items concurrently, in threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
from jax.sharding import Mesh

from lingua_flax.host.workers import in_order, usable_cores

MAX_CONCURRENT_PROGRAMS = 4  # each program allocates separate arrays
Item = TypeVar("Item")
Result = TypeVar("Result")


def num_concurrent_programs(mesh: Mesh) -> int:
    """Returns how many programs of small operations to run concurrently on the devices of a mesh.

    On one CPU device, operations that take a fraction of a millisecond gain little from a second core, so separate
    batches run on separate cores (measured: docs/results/index.md). Several devices must all run their programs in the
    same order, hence one at a time.
    """
    single_cpu = mesh.size == 1 and jax.process_count() == 1 and mesh.devices.item().platform == "cpu"
    return min(MAX_CONCURRENT_PROGRAMS, usable_cores()) if single_cpu else 1


def map_concurrently(
    function: Callable[[Item], Result], items: Iterable[Item], max_workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yields each item with its result, in order, while later items are being computed."""

    def call(item: Item) -> tuple[Item, Result]:
        return item, function(item)

    if max_workers <= 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(max_workers) as threads:
        try:
            yield from in_order(lambda item: threads.submit(call, item), items, max_workers)
        finally:
            threads.shutdown(cancel_futures=True)
