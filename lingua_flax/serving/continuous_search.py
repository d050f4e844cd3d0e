"""Searching in batches that sentences join and leave while they run (Orca, Yu et al. 2022).

A server has to end what nobody waits for any more, and does not let a short sentence wait for a long one.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lingua_flax.data.batch import bucket_lengths
from lingua_flax.data.placeholders import Protected
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.batched_search import RunningBatch
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator

STEPS = 8  # that are searched between which sentences join and leave
ROWS = (4, 1, 12)  # of batches that are not full, in the order of compilation


class Shape(NamedTuple):
    rows: int  # sentences of a batch
    length: int  # to which they are padded


def shapes(max_rows: int, max_length: int) -> list[Shape]:
    """Returns the shapes to compile, of which the first serves for all sentences, a few of them together."""
    rows = [*(size for size in ROWS if size < max_rows), max_rows]
    return [Shape(size, length) for size in rows for length in reversed(bucket_lengths(max_length))]


class ContinuousSearch:
    """Searches with programs for a few shapes of batches, compiled one by one; may be used from several threads.

    Only batches of the largest shape are joined; small ones are over soon.
    """

    def __init__(
        self, translator: Translator, options: DecodingOptions, rows: int, after_steps: Callable[[int, float], None]
    ):
        """Searches at most `rows` sentences together; calls `after_steps` with positions and the seconds."""
        self._translator, self._options, self._rows, self._after_steps = translator, options, rows, after_steps
        self._shapes: list[Shape] = []

    def compile(self, shape: Shape) -> None:
        """Compiles the programs for batches of a shape, by running them on sentences that end at once."""
        batch = RunningBatch(self._translator, self._options, [Part(Protected(""), [])], *shape)
        batch.advance(STEPS)
        for rows in self._joining_rows if shape.rows == self._rows else ():
            batch.join([Part(Protected(""), [])], rows)
            batch.advance(STEPS)
        batch.advance(STEPS)
        self._shapes = [*self._shapes, shape]

    def max_rows(self, length: int) -> int:
        """Returns how many sentences of a length can be searched together with the programs that are compiled."""
        return max(shape.rows for shape in self._shapes if shape.length >= length)

    def search(
        self,
        parts: Sequence[Part],
        is_wanted: Callable[[int], bool],
        more: Callable[[int, int, int], Sequence[Part] | None],
    ) -> Iterator[dict[int, tuple[Hypothesis, ...]]]:
        """Yields the hypotheses of at most `max_rows` parts, by their numbers, as long as each `is_wanted`.

        `more` returns up to so many parts that are not longer than a length, or None if there are not at least so many
        or the batch is to end; they get the numbers that follow.
        """
        longest, compiled = max(len(part.source) for part in parts), self._shapes
        fitting = [shape for shape in compiled if shape.rows >= len(parts) and shape.length >= longest]
        shape = min(fitting, key=math.prod)
        batch = RunningBatch(self._translator, self._options, parts, *shape)
        is_open = shape.rows == self._rows
        while batch.keep(is_wanted):
            started, steps = time.perf_counter(), batch.steps
            yield batch.advance(STEPS)
            self._after_steps(batch.steps - steps, time.perf_counter() - started)
            # A batch ends if it is less than a quarter full: a smaller one is faster.
            if is_open:
                joining = more(batch.num_free, shape.length, shape.rows // 4 - batch.num_active)
                is_open = joining is not None
                if joining:
                    batch.join(joining, next(rows for rows in self._joining_rows if rows >= len(joining)))

    @property
    def _joining_rows(self) -> tuple[int, ...]:
        """With how many rows sentences are encoded that join a batch."""
        return (self._rows // 4, self._rows) if self._rows >= 4 else (self._rows,)
