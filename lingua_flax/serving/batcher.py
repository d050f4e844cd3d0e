"""What waits for a search, and the batches that are made of it: sentences of similar length, fair between requests."""

import asyncio
import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from lingua_flax.serving.engine import Engine
from lingua_flax.serving.prometheus import Metrics
from lingua_flax.serving.protocol import check_size, unavailable
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.requests import Part, to_search


@dataclasses.dataclass(eq=False)
class Job:
    """The sentences of a request."""

    parts: Sequence[Part]
    waiting: dict[int, deque[int]]  # the indices of those that are in no batch yet, by padded length
    cost: int  # of those, in tokens times beams
    served: int = 0  # the cost of the others, from the `served` of the other jobs on when this one came
    results: asyncio.Future[list[tuple[Hypothesis, ...]]] = dataclasses.field(init=False)
    timeout: asyncio.Timeout = dataclasses.field(init=False)  # of the next sentence
    came: float = dataclasses.field(default_factory=time.monotonic)
    found: dict[int, tuple[Hypothesis, ...]] = dataclasses.field(default_factory=dict)


_Sentence = tuple[Job, int]  # of a job, by its index


class Batcher:
    """Searches in batches; of what they cost, each of the requests that wait gets an equal share."""

    def __init__(self, engine: Engine, metrics: Metrics, *, max_waiting: int, timeout: float):
        """Lets `max_waiting` tokens times beams wait, and a search of which nothing is found `timeout` seconds."""
        self._engine, self._metrics, self._max_waiting, self._timeout = engine, metrics, max_waiting, timeout
        self._jobs: dict[Job, None] = {}  # those that are wanted
        self._served = 0
        self._changed = threading.Condition()  # of the jobs and what waits of them
        self.is_stopping = False
        self._makes_way = False  # whether one of the batches ends for a sentence that is too long for it
        self._searching = 0  # batches
        self._progressed = time.monotonic()
        self._threads = ThreadPoolExecutor(engine.workers, thread_name_prefix="search")

    @property
    def waiting(self) -> int:
        """What the sentences that wait for a batch cost."""
        return sum(job.cost for job in self._jobs)

    @property
    def refusal(self) -> str | None:
        """Why a small request would be refused now, or would wait in vain."""
        if self._searching and time.monotonic() - self._progressed > self._timeout:
            return f"nothing was translated for {self._timeout:g} seconds"
        return "too many requests are waiting" if self._before(self._engine.max_cost) > self._max_waiting else None

    def _before(self, cost: int) -> int:
        """Returns what is searched until a search of this cost is done: as much of each that waits, but no more."""
        return cost + sum(min(job.cost, cost) for job in self._jobs)

    def job(self, parts: Sequence[Part]) -> Job:
        """Returns the job for the parts of a request that are `to_search`; takes 0.2 s for 160,000."""
        searched = to_search(parts)
        waiting: dict[int, deque[int]] = {}
        for index, part in enumerate(searched):
            waiting.setdefault(self._engine.padded_length(part), deque()).append(index)
        return Job(searched, waiting, sum(map(self._engine.cost, searched)))

    async def search(self, job: Job, *, is_admitted: bool = False) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of the parts of a job. If the task is cancelled, the search ends.

        Raises HTTPException if they cost more than may wait or too much is waiting, unless they are admitted, or if the
        batcher is stopping, and TimeoutError if none of them was found for too long.
        """
        if not job.parts:
            return []
        if self.is_stopping:
            raise unavailable("the server is stopping")
        if not is_admitted:
            check_size(job.cost, "tokens times beams", self._max_waiting)
            if self._before(job.cost) > self._max_waiting:
                raise unavailable("too many requests are waiting; try again later")
        job.served, job.results = self._served, asyncio.get_running_loop().create_future()
        job.timeout = asyncio.timeout(None)
        with self._changed:
            self._jobs[job] = None
            self._changed.notify()
        try:
            async with job.timeout:
                self._expect_progress(job)
                return await job.results
        finally:
            with self._changed:
                del self._jobs[job]

    async def run(self) -> None:
        """Searches batch after batch until `stop` has been called and nothing waits."""
        loop = asyncio.get_running_loop()
        workers = [loop.run_in_executor(self._threads, self._work, loop) for _ in range(self._engine.workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            self.stop()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Refuses further searches; those that wait are still done."""
        with self._changed:
            self.is_stopping = True
            self._changed.notify_all()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while batch := self._next_batch():
            self._searching += 1
            self._search(batch, loop)
            self._searching -= 1

    def _search(self, sentences: list[_Sentence], loop: asyncio.AbstractEventLoop) -> None:
        searched = dict(enumerate(sentences))  # those that are not done: others join for as long as the server is busy
        numbers = itertools.count(len(sentences))

        def is_wanted(number: int) -> bool:
            return number in searched and searched[number][0] in self._jobs

        def more(count: int, longest: int, at_least: int) -> list[Part] | None:
            for number in [number for number in searched if not is_wanted(number)]:
                self._done(searched.pop(number))
            if (joining := self._joining(count, longest, at_least)) is None:
                return None
            searched.update((next(numbers), sentence) for sentence in joining)
            return [job.parts[index] for job, index in joining]

        try:
            parts = [job.parts[index] for job, index in sentences]
            for found in self._engine.searcher.search(parts, is_wanted, more):
                results = [(*self._done(searched.pop(number)), own) for number, own in found.items()]
                loop.call_soon_threadsafe(self._deliver, results)
        except Exception as error:
            loop.call_soon_threadsafe(self._fail, list(searched.values()), error)
        finally:
            for sentence in searched.values():
                self._done(sentence)

    def _done(self, sentence: _Sentence) -> _Sentence:
        self._metrics.running.dec()
        return sentence

    def _next_batch(self) -> list[_Sentence]:
        """Waits for sentences, and takes some of similar length; none if the batcher is stopping.

        Of other lengths there are those up to half or twice as long, if there are not enough: a batch of 8 sentences
        takes 1.4 times as long for each as one of 32, and sentences that are done leave it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_stopping or any(job.waiting for job in self._jobs))
            self._makes_way = False
            jobs = [job for job in self._jobs if job.waiting]
            if not jobs:
                return []
            length = min(min(jobs, key=lambda job: job.served).waiting)
            similar = {other for job in jobs for other in job.waiting if length <= 2 * other <= 4 * length}
            batch: list[_Sentence] = []
            for own in sorted(similar, key=lambda other: (other != length, other)):
                batch += self._taken(self._engine.searcher.max_rows(own) - len(batch), {own})
            self._metrics.batch_sentences.observe(len(batch))
            return batch

    def _joining(self, count: int, longest: int, at_least: int) -> list[_Sentence] | None:
        """Takes up to `count` sentences for a batch that is being searched.

        Returns None, so that the batch ends, if there are not `at_least` so many, or the next in turn is too long for
        it: then it makes way, if no other does.
        """
        with self._changed:
            jobs = [job for job in self._jobs if job.waiting]
            lengths = {length for job in jobs for length in job.waiting if length <= longest}
            if jobs and not self._makes_way and min(min(jobs, key=lambda job: job.served).waiting) > longest:
                self._makes_way = True
                return None
            if sum(len(job.waiting.get(length, ())) for job in jobs for length in lengths) < at_least:
                return None
            return self._taken(count, lengths)

    def _taken(self, count: int, lengths: Collection[int]) -> list[_Sentence]:
        """Takes up to `count` sentences of these lengths, each from the request that has been served least."""
        taken: list[_Sentence] = []
        while len(taken) < count and (
            jobs := [job for job in self._jobs if not job.waiting.keys().isdisjoint(lengths)]
        ):
            job = min(jobs, key=lambda job: job.served)
            self._served = max(self._served, job.served)
            taken.append(self._take(job, min(length for length in job.waiting if length in lengths)))
        self._progressed = time.monotonic()
        self._metrics.running.inc(len(taken))
        return taken

    def _take(self, job: Job, length: int) -> _Sentence:
        index = job.waiting[length].popleft()
        if not job.waiting[length]:
            del job.waiting[length]
        cost = self._engine.cost(job.parts[index])
        job.cost -= cost
        job.served += cost
        self._metrics.queue_seconds.observe(time.monotonic() - job.came)
        self._metrics.source_tokens.inc(len(job.parts[index].source))
        return job, index

    def _deliver(self, results: Sequence[tuple[Job, int, tuple[Hypothesis, ...]]]) -> None:
        self._progressed = time.monotonic()
        for job, index, hypotheses in results:
            job.found[index] = hypotheses
            self._metrics.target_tokens.inc(len(hypotheses[0].tokens))
            if job.results.done():
                continue
            if len(job.found) == len(job.parts):
                job.results.set_result([job.found[i] for i in range(len(job.parts))])
            else:
                self._expect_progress(job)

    def _fail(self, batch: Sequence[_Sentence], error: Exception) -> None:
        for job, _ in batch:
            if job in self._jobs and not job.results.done():
                job.results.set_exception(error)

    def _expect_progress(self, job: Job) -> None:
        job.timeout.reschedule(asyncio.get_running_loop().time() + self._timeout)
