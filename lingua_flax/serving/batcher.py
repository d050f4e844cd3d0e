"""Batches of requests: texts that arrive together are translated together, in a thread of their own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WINDOW = 0.003  # seconds for which an idle batcher waits for more requests before it translates the first


class RefusedError(Exception):
    """The batcher takes no more items; the message says why."""


class _Job(NamedTuple, Generic[Item, Result]):
    """The items of one request, and the future of their results."""

    items: Sequence[Item]
    results: asyncio.Future[list[Result]]


@dataclasses.dataclass(eq=False)
class Batcher(Generic[Item, Result]):
    """Runs a function on the items of all waiting requests at once.

    While all workers are busy, the requests that arrive form the next batch. A request that is cancelled before its
    batch begins costs nothing.

    Attributes:
      function: called in a thread with the items of a batch; returns their results, in order.
      max_batch: items in a batch; a request with more of them is a batch of its own.
      max_waiting: items that may wait, unless a single request has more.
      workers: batches that run at the same time.
      window: seconds for which the first request that arrives waits for others.
    """

    function: Callable[[list[Item]], list[Result]]
    _: dataclasses.KW_ONLY
    max_batch: int
    max_waiting: int
    workers: int = 1
    window: float = WINDOW

    def __post_init__(self) -> None:
        self._jobs: deque[_Job[Item, Result]] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="translation")

    @property
    def waiting(self) -> int:
        """The number of items that wait for a batch."""
        return sum(len(job.items) for job in self._jobs if not job.results.cancelled())

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Returns the results of a request's items, in order, or raises what the function raised for their batch.

        Raises RefusedError if too many items are waiting or the batcher is stopping.
        """
        if self._stopping:
            raise RefusedError("the server is stopping")
        waiting = self.waiting
        if waiting and waiting + len(items) > self.max_waiting:
            raise RefusedError("too many requests are waiting; try again later")
        job = _Job[Item, Result](items, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrived.set()
        return await job.results

    async def run(self) -> None:
        """Translates batch after batch until `stop` has been called and nothing waits."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.workers):
                    tasks.create_task(self._work())
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := await self._next_batch():
            items = [item for job in batch for item in job.items]
            try:
                results = await loop.run_in_executor(self._threads, self.function, items)
            except Exception as error:
                for job in batch:
                    if not job.results.done():
                        job.results.set_exception(error)
                continue
            for job in batch:
                own, results = results[: len(job.items)], results[len(job.items) :]
                if not job.results.done():
                    job.results.set_result(own)

    def stop(self) -> None:
        """Refuses further requests; those that wait are still answered."""
        self._stopping = True
        self._arrived.set()

    async def _next_batch(self) -> list[_Job[Item, Result]]:
        """Waits for requests and returns those of the next batch; none after `stop`, once nothing waits."""
        was_idle = not self._jobs
        while not self.waiting:
            self._jobs.clear()  # all were cancelled
            if self._stopping:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        if was_idle and not self._stopping:
            await asyncio.sleep(self.window)
        batch: list[_Job[Item, Result]] = []
        size = 0
        while self._jobs and (not batch or size + len(self._jobs[0].items) <= self.max_batch):
            job = self._jobs.popleft()
            if not job.results.cancelled():
                batch.append(job)
                size += len(job.items)
        return batch or await self._next_batch()
