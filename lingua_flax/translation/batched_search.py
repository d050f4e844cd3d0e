"""Searching many sentences at once, in batches of similar length, of which several run at a time on a CPU.

A batch is searched some positions at a time: in between, sentences leave it and others join it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from lingua_flax.data.batch import length_batches
from lingua_flax.data.placeholders import Protected
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.devices.compilation import compile_concurrently, compiled_program
from lingua_flax.devices.mesh import round_up_to_row_shards
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.devices.sharding import put_on_devices, row_sharding
from lingua_flax.host.errors import RunError
from lingua_flax.host.workers import in_order, usable_cores
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import PAD_ID
from lingua_flax.translation import decoding, search
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.loading import BATCH_SIZE_ON_CPU, TrainedNetwork
from lingua_flax.translation.requests import Part, request_of

# A few sentences are padded to one of these batch sizes instead of a full batch, which is faster to run and to compile.
SMALL_BATCH_SIZES = (1, 4, 16)
# Maximum number of elements of a batch's keys and values, 4 GB in bfloat16; beyond it, fewer sentences are decoded
# together. The base model just exceeds it with 512 sentences of 64 tokens and 5 beams, for which the compiler for a TPU
# v5e reports 9.7 GB of temporaries (docs/results/index.md).
MAX_CACHE_ELEMENTS = 2**31
EXTRA_INITIAL_POSITIONS = 4  # beyond the source length; few translations need more
UNLIMITED = 2**30  # positions
MAX_CONCURRENT_PROGRAMS = 4  # each program allocates separate arrays
Item = TypeVar("Item")
Result = TypeVar("Result")


def search_parts(
    network: TrainedNetwork,
    parts: Sequence[Part],
    options: DecodingOptions,
    after_batch: Callable[[int], None] = lambda lines: None,
) -> list[tuple[Hypothesis, ...]]:
    """Returns the hypotheses of each part, best first, as many as its `num_hypotheses`.

    `after_batch` is called after each batch with the number of lines whose first part was in it, and may raise to stop.
    Raises RunError if the network computes NaN or infinity.
    """
    rows, batches = _batches(network, parts, options)
    tail_length = _tail_length(network, batches)

    def search(batch: tuple[list[int], int]) -> list[tuple[Hypothesis, ...]]:
        group, length = batch
        own = [parts[i] for i in group]
        return RunningBatch(network, options, own, rows, length, tail_length=tail_length).finish()

    found: dict[int, tuple[Hypothesis, ...]] = {}
    num_threads = min(len(batches), num_concurrent_programs(network.mesh))  # a thread takes 1 ms to start
    for (group, _), hypotheses in map_concurrently(search, batches, num_threads):
        found.update(zip(group, hypotheses, strict=True))
        after_batch(sum(parts[i].part == 0 for i in group))
    return [found[i] for i in range(len(parts))]


def compile_search(network: TrainedNetwork, parts: Sequence[Part], options: DecodingOptions) -> None:
    """Compiles the programs that begin the search of these parts, concurrently; does not run them."""
    rows, batches = _batches(network, parts, options)
    tail_length = _tail_length(network, batches)
    lengths = sorted({length for _, length in batches})
    nothing = [Part(Protected(""), [])]
    compile_concurrently(
        *(RunningBatch(network, options, nothing, rows, length, tail_length=tail_length).compile for length in lengths)
    )


def default_batch_size(network: TrainedNetwork, longest: int, width: int) -> int:
    """Returns how many sentences of at most `longest` tokens are searched together; `width` is K of the search."""
    rows = network.batch_size
    positions = min(decoding.default_max_length(longest), network.max_length)
    sizes = (member.config for member in network.members)
    per_position = 2 * sum(config.num_decoder_layers * config.embed_dim for config in sizes)
    while rows > BATCH_SIZE_ON_CPU and rows * width * positions * per_position > MAX_CACHE_ELEMENTS:
        rows //= 2
    return rows


def _batches(
    network: TrainedNetwork, parts: Sequence[Part], options: DecodingOptions
) -> tuple[int, list[tuple[list[int], int]]]:
    """Returns the batch size, one of SMALL_BATCH_SIZES if that is enough, and the batches.

    A batch is the indices of its parts and their padded length.
    """
    lengths = [len(part.source) for part in parts]
    width = max((part.num_hypotheses for part in parts), default=1) if options.temperature else options.beam_size
    full = options.batch_size or default_batch_size(network, max(lengths, default=1), width)
    rows = min([size for size in SMALL_BATCH_SIZES if len(parts) <= size < full], default=full)
    return rows, list(length_batches(lengths, rows, network.max_length, same_length=network.pads_to_longest))


def _tail_length(network: TrainedNetwork, batches: Sequence[tuple[list[int], int]]) -> int | None:
    """Returns the length of the smaller batches in which the last sentences of batches continue, if they do."""
    return None if network.pads_to_longest else max((length for _, length in batches), default=None)


class RunningBatch:
    """Sentences in the rows of a batch; they are numbered from 0, those that join on from those that began."""

    def __init__(
        self,
        network: TrainedNetwork,
        options: DecodingOptions,
        parts: Sequence[Part],
        rows: int,
        length: int,
        *,
        tail_length: int | None = None,
        is_recorded: bool = False,
    ):
        """Prepares a batch of parts; `rows` is rounded up to a multiple of the number of row shards.

        With a `tail_length`, at least `length`, the last sentences continue in smaller batches, all padded to that
        length, so that batches of several lengths have the same programs for them: less to compute, more to compile.
        """
        self._network, self._options, self._length, self._tail_length = network, options, length, tail_length or length
        self._sizes = [size for size in (rows * 3 // 8, rows * 3 // 32) if size > 1 and tail_length]
        self._request = self._on_devices(parts, rows)
        prefix_length = self._request.prefixes.shape[1]
        self._max_room = decoding.length_limit(self._tail_length, prefix_length, options, network.max_length)
        self._how = self._decoding(parts, is_recorded=is_recorded)
        self._sentences = np.arange(len(self._request.source))
        self._is_active = self._sentences < len(parts)
        self._parts = dict(enumerate(parts))  # those that are not done, by their numbers
        self._next_number = len(parts)
        self.progress: search.SearchState | None = None
        self.steps = 0  # positions that have been searched

    @property
    def num_active(self) -> int:
        """The number of sentences that are not done."""
        return int(self._is_active.sum())

    @property
    def num_free(self) -> int:
        """The number of sentences that can join."""
        return len(self._is_active) - self.num_active

    def compile(self) -> None:
        """Compiles the program that begins the search; does not run it."""
        compiled_program(decoding.start, *self._start_arguments(UNLIMITED, 0))

    def finish(self) -> list[tuple[Hypothesis, ...]]:
        """Searches until all sentences are done, and returns the hypotheses of each, best first.

        The caches start with room for fewer positions than the longest translation may have, which is enough for most
        sentences. Those that need more, and the last few of a batch, continue in smaller batches: with Multi30k sorted
        by length, one or two sentences in most batches of 64 take twice as many tokens as the others. The gain is in
        docs/results/index.md.
        """
        found: dict[int, tuple[Hypothesis, ...]] = {}
        for enough in (*self._sizes, 0):
            found |= self.advance(enough=enough)
            while self.num_active > enough:  # more than expected need more room
                self._take(len(self._is_active))
                found |= self.advance(enough=enough)
            if not self.num_active:
                break
            self._take(enough)
        return [hypotheses for _, hypotheses in sorted(found.items())]

    def advance(self, max_steps: int = UNLIMITED, enough: int = 0) -> dict[int, tuple[Hypothesis, ...]]:
        """Searches on, with limits as in `search.advance`; returns the hypotheses of the sentences that are done now.

        Raises RunError if the network computes NaN or infinity, so that a sentence has no hypothesis with a score.
        """
        if self.progress is None:
            searched = _run(decoding.start, *self._start_arguments(max_steps, enough))
        else:
            limits = np.int32(max_steps), np.int32(enough)
            arguments = self._network.networks, self.progress, self._how, self._is_active, *limits
            searched = _run(decoding.go_on, *arguments)
        self.progress = searched.progress
        self.steps, is_done, (tokens, scores) = gather_to_host((searched.progress.step, *searched[1:]))
        rows = np.flatnonzero(is_done & self._is_active)
        self._is_active = self._is_active & ~is_done
        numbers = self._sentences[rows].tolist()
        counts = [self._parts.pop(number).num_hypotheses for number in numbers]
        hypotheses = map(_detokenized, [self._network.tokenizer] * len(rows), tokens[rows], scores[rows], counts)
        return dict(zip(numbers, hypotheses, strict=True))

    def keep(self, is_wanted: Callable[[int], bool]) -> bool:
        """Ends the search of the sentences that are not wanted; returns whether any is left."""
        self._parts = {number: part for number, part in self._parts.items() if is_wanted(number)}
        self._is_active &= np.isin(self._sentences, list(self._parts))
        return bool(self._parts)

    def join(self, parts: Sequence[Part], rows: int) -> None:
        """Puts sentences without prefixes into free rows, at most `rows`, as which they are encoded."""
        assert self.progress is not None
        free = np.flatnonzero(~self._is_active)[: len(parts)]
        targets = np.full(rows, len(self._is_active), np.int32)  # of those that are none: no row
        targets[: len(parts)] = free
        request = self._on_devices(parts, rows)
        self.progress = _run(decoding.join, self._network.networks, self.progress, request, targets, self._how)
        self._sentences[free] = numbers = range(self._next_number, self._next_number + len(parts))
        self._is_active[free] = True
        self._parts |= zip(numbers, parts, strict=True)
        self._next_number += len(parts)

    def _take(self, size: int) -> None:
        """Continues with so many sentences, those that are active first, and with room for the longest translation."""
        rows = np.argsort(~self._is_active, kind="stable")[:size]
        self._sentences, self._is_active = self._sentences[rows], self._is_active[rows]
        room, source_length = self._max_room, self._tail_length
        self.progress = _run(decoding.take, self.progress, rows, room=room, source_length=source_length)

    def _start_arguments(self, max_steps: int, enough: int) -> tuple[Any, ...]:
        return self._network.networks, self._request, self._how, np.int32(max_steps), np.int32(enough)

    def _on_devices(self, parts: Sequence[Part], rows: int) -> decoding.DecodingRequest:
        mesh = self._network.mesh
        request = request_of(parts, self._options, round_up_to_row_shards(mesh, rows), self._length)
        # A single device gets the arrays with the call: 0.2 ms less.
        return request if mesh.size == 1 else put_on_devices(request, row_sharding(mesh))

    def _decoding(self, parts: Sequence[Part], *, is_recorded: bool) -> decoding.Decoding:
        options, room = self._options, self._max_room
        if self._sizes:
            prefix_length = self._request.prefixes.shape[1]
            room = min(room, self._length + prefix_length + EXTRA_INITIAL_POSITIONS)
        width = parts[0].num_hypotheses if options.temperature else options.beam_size
        program = decoding.Program(width, room, options.top_k, options.top_p, is_recorded)
        sampling = (np.uint32(options.seed), np.float32(options.temperature)) if options.temperature else None
        penalty = (np.float32(options.length_penalty), np.float32(options.penalty_offset))
        return decoding.Decoding(program, sampling, *penalty)


def _run(function: jax.stages.Wrapped, *arguments: Any, **static: Any) -> Any:
    return compiled_program(function, *arguments, **static)(*arguments)


def _detokenized(tokenizer: Tokenizer, tokens: np.ndarray, scores: np.ndarray, count: int) -> tuple[Hypothesis, ...]:
    """Returns at most `count` hypotheses of a sentence, given as [K, R] and [K]."""
    if not scores[0] > search.IMPOSSIBLE / 2:
        raise RunError(
            "the outputs of the network are not finite: its training has diverged. Use an earlier --checkpoint, or "
            "train again with a lower optimizer.peak_lr"
        )
    count = min(count, int((scores > search.IMPOSSIBLE / 2).sum()))
    ids = [tuple(row[row != PAD_ID].tolist()) for row in tokens[:count]]
    return tuple(map(Hypothesis, tokenizer.decode_target(ids), scores[:count].tolist(), ids))


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
