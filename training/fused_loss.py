"""The logarithm of the softmax's denominator without its logits: a kernel for TPUs.

A batch's logits are by far the largest array of a step (26,624 positions and 37,000 pieces take 3.9 GB) and would be
written once and read five times. Here a program computes those of some positions and some pieces in the chip's vector
memory and keeps their sum; the backward pass computes them once more for each of its two products.

M positions, V vocabulary, D model width.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec

from devices.mesh import ROW_AXES
from devices.sharding import SHARED_BY
from training.kernels import on_each_device, product

# Bytes of vector memory that a program may take for its part of the outer loop, its part of the inner loop, and their
# logits; a chip has 16 MB, and more than these goes into it.
OUTER_BYTES, INNER_BYTES, LOGITS_BYTES = 2**23, 2**20, 2**21
PIECES_AXIS = SHARED_BY["vocab"]  # of the mesh


@dataclasses.dataclass(frozen=True)
class FusedLogNormalizer:
    """log(sum over v of exp(x . table[v])) on a mesh."""

    mesh: Mesh
    interpret: bool = False

    def __call__(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """x [M, D], shared out by rows, and table [V, D] of the same type, by pieces -> [M] float32."""
        return _log_normalizer(x, table, self)


_POSITIONS, _PIECES = PartitionSpec(ROW_AXES), PartitionSpec(PIECES_AXIS)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _log_normalizer(x: jax.Array, table: jax.Array, on: FusedLogNormalizer) -> jax.Array:
    return _forward(x, table, on)[0]


def _forward(
    x: jax.Array, table: jax.Array, on: FusedLogNormalizer
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    def local(x: jax.Array, table: jax.Array) -> jax.Array:
        own = _sums(x, table, on.interpret)
        greatest = jax.lax.pmax(own, PIECES_AXIS)
        return greatest + jnp.log(jax.lax.psum(jnp.exp(own - greatest), PIECES_AXIS))

    found = on_each_device(local, on.mesh, (_POSITIONS, _PIECES), _POSITIONS)(x, table)
    return found, (x, table, found)


def _backward(
    on: FusedLogNormalizer, kept: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def local(x: jax.Array, table: jax.Array, found: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
        for_x = jax.lax.psum(_gradient_of_x(x, table, found, gradient, on.interpret), PIECES_AXIS)
        for_table = jax.lax.psum(_gradient_of_table(x, table, found, gradient, on.interpret), ROW_AXES)
        return for_x.astype(x.dtype), for_table.astype(table.dtype)

    inputs = (_POSITIONS, _PIECES, _POSITIONS, _POSITIONS)
    return on_each_device(local, on.mesh, inputs, (_POSITIONS, _PIECES))(*kept, gradient)


_log_normalizer.defvjp(_forward, _backward)


def _sums(x: jax.Array, table: jax.Array, interpret: bool) -> jax.Array:
    """log(sum over v of exp(x . table[v])), [M], piece by piece with the greatest logit so far taken out."""

    def kernel(x: Any, table: Any, result: Any, greatest: Any, total: Any, *, at: _Place) -> None:
        @pl.when(at.is_first_process)
        def _() -> None:
            greatest[...], total[...] = jnp.full_like(greatest, -jnp.inf), jnp.zeros_like(total)

        logits = jnp.where(at.pieces < at.vocabulary, product(x[...], table[...], (1, 1)), -jnp.inf)
        before, greatest[...] = greatest[...], jnp.maximum(greatest[...], jnp.max(logits, axis=1, keepdims=True))
        here = jnp.sum(jnp.exp(logits - greatest[...]), axis=1, keepdims=True)
        total[...] = total[...] * jnp.exp(before - greatest[...]) + here

        @pl.when(at.is_last)
        def _() -> None:
            result[...] = greatest[...] + jnp.log(total[...])

    like = jax.ShapeDtypeStruct((len(x), 1), jnp.float32)
    return _call(kernel, like, x, table, products=1, sums=2, interpret=interpret)[:, 0]


def _gradient_of_x(x: jax.Array, table: jax.Array, found: jax.Array, gradient: jax.Array, interpret: bool) -> jax.Array:
    """[M, D] float32: every row of the table weighed by its probability."""

    def kernel(x: Any, table: Any, found: Any, gradient: Any, result: Any, *, at: _Place) -> None:
        @pl.when(at.is_first_process)
        def _() -> None:
            result[...] = jnp.zeros_like(result)

        part = jnp.where(at.vocabulary > at.pieces.T, table[...], 0)  # what lies behind the end may be no number
        weights = jnp.exp(product(x[...], part, (1, 1)) - found[...]) * gradient[...]
        result[...] += product(weights.astype(part.dtype), part, (1, 0))

    like = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return _call(kernel, like, x, table, found, gradient, products=2, interpret=interpret)


def _gradient_of_table(
    x: jax.Array, table: jax.Array, found: jax.Array, gradient: jax.Array, interpret: bool
) -> jax.Array:
    """[V, D] float32: every position weighed by the probability that it gives to the piece."""

    def kernel(x: Any, table: Any, found: Any, gradient: Any, result: Any, *, at: _Place) -> None:
        @pl.when(at.is_first_process)
        def _() -> None:
            result[...] = jnp.zeros_like(result)

        there = at.positions < at.length
        part = jnp.where(there, x[...], 0)
        weights = jnp.where(there, jnp.exp(product(part, table[...], (1, 1)) - found[...]) * gradient[...], 0.0)
        result[...] += product(weights.astype(part.dtype), part, (0, 0))

    like = jax.ShapeDtypeStruct(table.shape, jnp.float32)
    return _call(kernel, like, x, table, found, gradient, products=2, by_piece=True, interpret=interpret)


class _Place(NamedTuple):
    """Where a program stands: its positions [block, 1] and pieces [1, block], of so many; whether it is the first or
    the last one of those that write the same block of the result."""

    positions: jax.Array
    pieces: jax.Array
    length: int
    vocabulary: int
    is_first_process: jax.Array
    is_last: jax.Array


def _call(
    kernel: Callable[..., None],
    like: jax.ShapeDtypeStruct,
    x: jax.Array,
    table: jax.Array,
    *columns: jax.Array,
    products: int,
    sums: int = 0,
    by_piece: bool = False,
    interpret: bool,
) -> jax.Array:
    """Runs a kernel for all blocks of positions and pieces; those that the result does not have are the inner loop.

    Args:
      columns: [M], which the kernel gets as [block, 1].
      products: how many matrix products of a block it computes.
      sums: how many columns [block, 1] it keeps in the inner loop.
      by_piece: whether the result is one of the pieces, not of the positions.
    """
    length, (vocabulary, width) = len(x), table.shape
    outer = 1 if by_piece else 0
    sizes = block_sizes(width, x.dtype.itemsize)
    rows, pieces = min(length, sizes[outer]), min(vocabulary, sizes[1 - outer])
    blocks = pl.cdiv(length, rows), pl.cdiv(vocabulary, pieces)

    def block(size: int, shape: int, axis: int) -> pl.BlockSpec:
        place = axis if outer == 0 else 1 - axis
        return pl.BlockSpec((size, shape), lambda *ids: (ids[place], 0))

    def placed(*refs: Any) -> None:
        position, piece = (pl.program_id(axis if outer == 0 else 1 - axis) for axis in (0, 1))
        at = _Place(
            position * rows + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0),
            piece * pieces + jax.lax.broadcasted_iota(jnp.int32, (1, pieces), 1),
            length,
            vocabulary,
            pl.program_id(1) == 0,
            pl.program_id(1) == pl.num_programs(1) - 1,
        )
        kernel(*refs, at=at)

    read = (x.nbytes, table.nbytes)
    return pl.pallas_call(
        placed,
        out_shape=like,
        grid=(blocks[outer], blocks[1 - outer]),
        in_specs=[block(rows, width, 0), block(pieces, width, 1), *[block(rows, 1, 0)] * len(columns)],
        out_specs=block(pieces if by_piece else rows, like.shape[1], outer),
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * sums,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * length * vocabulary * width,
            transcendentals=length * vocabulary,
            bytes_accessed=read[outer] + blocks[outer] * read[1 - outer] + math.prod(like.shape) * 4,
        ),
        interpret=interpret,
    )(x, table, *(column[:, None] for column in columns))


def block_sizes(width: int, itemsize: int) -> tuple[int, int]:
    """How many positions or pieces a program takes: of the outer loop, whose operand and float32 result are held twice,
    as many as there is memory for, since with each block the whole other operand is read; and of the inner loop."""

    def fitting(most: int) -> int:
        return max(128, min(2048, 2 ** int(math.log2(most))))

    outer = fitting(OUTER_BYTES // (width * (2 * itemsize + 2 * 4)))
    return outer, fitting(min(INNER_BYTES // (width * itemsize), LOGITS_BYTES // (4 * outer)))
