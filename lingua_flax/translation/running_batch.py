"""A batch of sentences that is searched some positions at a time: in between, some leave it and others join it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.devices.compilation import compiled_program
from lingua_flax.devices.mesh import round_up_to_row_shards
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.devices.sharding import put_on_devices, row_sharding
from lingua_flax.host.errors import RunError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import PAD_ID
from lingua_flax.translation import decoding, search
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.loading import TrainedNetwork
from lingua_flax.translation.requests import Part, request_of

EXTRA_INITIAL_POSITIONS = 4  # beyond the source length; few translations need more
UNLIMITED = 2**30  # positions


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
        self._parts = list(parts)
        self.progress: search.Progress | None = None
        self.steps = 0  # positions that have been searched

    @property
    def num_active(self) -> int:
        """The number of sentences that are not done."""
        return int(self._is_active.sum())

    @property
    def num_free(self) -> int:
        """The number of sentences that can join."""
        return len(self._is_active) - self.num_active

    @property
    def longest(self) -> int:
        """The number of source tokens of the longest sentence that is not done."""
        return max((len(self._parts[number].source) for number in self._sentences[self._is_active]), default=0)

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
        return [found[number] for number in range(len(self._parts))]

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
        counts = [self._parts[number].num_hypotheses for number in numbers]
        hypotheses = map(_detokenized, [self._network.tokenizer] * len(rows), tokens[rows], scores[rows], counts)
        return dict(zip(numbers, hypotheses, strict=True))

    def keep(self, is_wanted: Callable[[int], bool]) -> bool:
        """Ends the search of the sentences that are not wanted; returns whether any is left."""
        self._is_active[self._is_active] = [is_wanted(number) for number in self._sentences[self._is_active].tolist()]
        return bool(self._is_active.any())

    def join(self, parts: Sequence[Part], rows: int) -> None:
        """Puts sentences without prefixes into free rows, at most `rows`, as which they are encoded."""
        assert self.progress is not None
        free = np.flatnonzero(~self._is_active)[: len(parts)]
        targets = np.full(rows, len(self._is_active), np.int32)  # of those that are none: no row
        targets[: len(parts)] = free
        request = self._on_devices(parts, rows)
        self.progress = _run(decoding.join, self._network.networks, self.progress, request, targets, self._how)
        self._sentences[free] = np.arange(len(self._parts), len(self._parts) + len(parts))
        self._is_active[free] = True
        self._parts += parts

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
        return decoding.Decoding(program, sampling, np.float32(options.length_penalty))


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
