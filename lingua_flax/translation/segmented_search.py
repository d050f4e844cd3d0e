"""A search in calls of a few positions each, between which sentences can leave the batch, or the search can end.

A server has to end what nobody waits for any more, and does not let a short sentence wait for a long one.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lingua_flax.data.batch import bucket_lengths
from lingua_flax.data.placeholders import Protected
from lingua_flax.devices.sharding import replicated
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation import decoding
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.requests import Part
from lingua_flax.translation.search import Hypotheses
from lingua_flax.translation.translator import Translator

SEGMENT = 8  # positions of a call
ROWS = (4, 1, 8, 16, 24)  # of batches that are not full, in the order of compilation


class Shape(NamedTuple):
    rows: int  # sentences of a batch
    length: int  # to which they are padded


def shapes(max_rows: int, max_length: int) -> list[Shape]:
    """Returns the shapes to compile, of which the first serves for all sentences, a few of them together."""
    rows = [*(size for size in ROWS if size < max_rows), max_rows]
    return [Shape(size, length) for size in rows for length in reversed(bucket_lengths(max_length))]


class SegmentedSearch:
    """Searches with programs for a few shapes of batches, compiled one by one; may be used from several threads."""

    def __init__(self, translator: Translator, options: DecodingOptions, after_steps: Callable[[int, float], None]):
        """Calls `after_steps` with a number of positions and the seconds that they took."""
        self._translator, self._options, self._after_steps = translator, options, after_steps
        self._shapes: list[Shape] = []
        self._sharding = replicated(translator.mesh)
        self._begin = jax.jit(_begin, out_shardings=self._sharding)
        self._advance = jax.jit(_advance, donate_argnames="carry", out_shardings=self._sharding)
        self._grow = jax.jit(_grow, out_shardings=self._sharding)

    def compile(self, shape: Shape) -> None:
        """Compiles the programs for batches of a shape, by running them on a sentence that ends at once."""
        networks, request, how = self._translator.arguments([Part(Protected(""), [])], self._options, *shape)
        carry, active = self._begin(networks, request, how), np.zeros(shape.rows, bool)
        if decoding.initial_room(request, how.program) < how.program.length:
            carry, *_ = self._advance(networks, carry, how, active)
            carry = self._grow(networks, carry, how)
        jax.block_until_ready(self._advance(networks, carry, how, active))
        self._shapes = [*self._shapes, shape]

    def max_rows(self, length: int) -> int:
        """Returns how many sentences of a length can be searched together with the programs that are compiled."""
        return max(shape.rows for shape in self._shapes if shape.length >= length)

    def search(
        self, parts: Sequence[Part], num_hypotheses: int, is_wanted: Callable[[int], bool]
    ) -> Iterator[dict[int, tuple[Hypothesis, ...]]]:
        """Yields the hypotheses of at most `max_rows` parts, by their indices, as long as each `is_wanted`."""
        longest, compiled = max(len(part.source) for part in parts), self._shapes
        fitting = [shape for shape in compiled if shape.rows >= len(parts) and shape.length >= longest]
        rows, length = min(fitting, key=math.prod)
        networks, request, how = self._translator.arguments(parts, self._options, rows, length, num_hypotheses)
        carry, position, room = self._begin(networks, request, how), 0, decoding.initial_room(request, how.program)
        indices = np.arange(rows)  # of the part in each row
        active = indices < len(parts)
        while True:
            active[active] = [is_wanted(index) for index in indices[active].tolist()]
            if not active.any():
                return
            needed = min(shape.rows for shape in compiled if shape.length == length and shape.rows >= active.sum())
            if needed < len(active) and not how.program.keeps_full_batches:
                chosen = np.argsort(~active, kind="stable")[:needed]
                indices, active, carry = indices[chosen], active[chosen], self._take(carry, chosen)
            if position >= room:
                carry, room = self._grow(networks, carry, how), how.program.length
            started, previous = time.perf_counter(), position
            carry, done, found = self._advance(networks, carry, how, active)
            done, position = active & np.asarray(done), int(carry.position)
            self._after_steps(position - previous, time.perf_counter() - started)
            if done.any():
                found = jax.tree.map(lambda array, rows=done: np.asarray(array)[rows, :num_hypotheses], found)
                hypotheses = self._translator.detokenized(found, len(found.scores))
                yield dict(zip(indices[done].tolist(), hypotheses, strict=True))
            active &= ~done

    def _take(self, carry: Any, rows: np.ndarray) -> Any:
        """Returns some rows, chosen by NumPy: as programs, each pair of sizes would have one of its own."""
        taken = jax.tree.map(lambda leaf: np.asarray(leaf)[rows] if leaf.ndim else np.asarray(leaf), carry)
        return jax.device_put(taken, self._sharding)


def _begin(networks: Sequence[decoding.Network], request: decoding.DecodingRequest, how: decoding.Decoding) -> Any:
    return decoding.search_from(networks, *decoding.initial(networks, request, how), how).initial


def _advance(
    networks: Sequence[decoding.Network], carry: Any, how: decoding.Decoding, active: jax.Array
) -> tuple[Any, jax.Array, Hypotheses]:
    """Returns the carry after a segment, which sentences are done, and the hypotheses so far."""
    search = decoding.search_from(networks, carry.constraints, carry.state, how)._replace(initial=carry)
    carry = search.run_steps(active, SEGMENT)
    return carry, search.done(carry), search.result(carry)


def _grow(networks: Sequence[decoding.Network], carry: Any, how: decoding.Decoding) -> Any:
    task = decoding.search_from(networks, carry.constraints, carry.state, how).task
    return carry._replace(state=task.grow(carry.state, task.max_length))
