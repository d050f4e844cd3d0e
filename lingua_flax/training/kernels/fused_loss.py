"""The logarithm of the softmax's denominator without stored logits: a TPU kernel.

The logits of a batch, by far the largest array of a training step (3.9 GB for 26,624 positions and 37,000 pieces),
would be written to main memory once and read five times. Each program of the kernel computes those of a block in the
chip's vector memory and keeps only their sum. The backward pass recomputes them for each of its two products.

Shapes: M positions, V vocabulary size, D model width.
"""

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

from lingua_flax.devices.mesh import ROW_AXES
from lingua_flax.devices.sharding import MESH_AXIS_OF
from lingua_flax.training.kernels.pallas_kernels import on_each_device, product

# Vector memory, in bytes, that a program may use for its block of the outer loop, its block of the inner loop, and the
# logits of both. A chip has 16 MB, which must hold other values as well.
OUTER_BYTES, INNER_BYTES, LOGITS_BYTES = 2**23, 2**20, 2**21
PIECES_AXIS = MESH_AXIS_OF["vocab"]  # the mesh axis that shards the vocabulary


@dataclasses.dataclass(frozen=True)
class FusedLogNormalizer:
    """Computes log(sum over v of exp(x . table[v])) on a mesh; `interpret` runs it as plain JAX, on any device."""

    mesh: Mesh
    interpret: bool = False

    def __call__(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """Returns [M] float32; x, [M, D], is sharded by positions, and table, [V, D] of the same type, by pieces."""
        return _log_normalizer(x, table, self)


_POSITIONS, _PIECES = PartitionSpec(ROW_AXES), PartitionSpec(PIECES_AXIS)
_Residuals = tuple[jax.Array, jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _log_normalizer(x: jax.Array, table: jax.Array, options: FusedLogNormalizer) -> jax.Array:
    return _forward(x, table, options)[0]


def _forward(x: jax.Array, table: jax.Array, options: FusedLogNormalizer) -> tuple[jax.Array, _Residuals]:
    def local(x: jax.Array, table: jax.Array) -> jax.Array:
        local_sums = _log_sums(x, table, options.interpret)
        max_sums = jax.lax.pmax(local_sums, PIECES_AXIS)
        return max_sums + jnp.log(jax.lax.psum(jnp.exp(local_sums - max_sums), PIECES_AXIS))

    log_sums = on_each_device(local, mesh=options.mesh, in_specs=(_POSITIONS, _PIECES), out_specs=_POSITIONS)(x, table)
    return log_sums, (x, table, log_sums)


def _backward(options: FusedLogNormalizer, residuals: _Residuals, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    def local(x: jax.Array, table: jax.Array, log_sums: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
        inputs = (x, table, log_sums, gradient, options.interpret)
        d_x = jax.lax.psum(_gradient(*inputs, of_table=False), PIECES_AXIS)
        d_table = jax.lax.psum(_gradient(*inputs, of_table=True), ROW_AXES)
        return d_x.astype(x.dtype), d_table.astype(table.dtype)

    inputs = (_POSITIONS, _PIECES, _POSITIONS, _POSITIONS)
    outputs = (_POSITIONS, _PIECES)
    return on_each_device(local, mesh=options.mesh, in_specs=inputs, out_specs=outputs)(*residuals, gradient)


_log_normalizer.defvjp(_forward, _backward)


def _log_sums(x: jax.Array, table: jax.Array, interpret: bool) -> jax.Array:
    """Computes log(sum over v of exp(x . table[v])), [M], by an online softmax: relative to the maximum so far."""

    def kernel(x: Any, table: Any, result: Any, max_logits: Any, total: Any, *, block: _Block) -> None:
        @pl.when(block.is_first)
        def _() -> None:
            max_logits[...], total[...] = jnp.full_like(max_logits, -jnp.inf), jnp.zeros_like(total)

        logits = jnp.where(block.pieces < block.vocabulary, product(x[...], table[...], (1, 1)), -jnp.inf)
        before, max_logits[...] = max_logits[...], jnp.maximum(max_logits[...], jnp.max(logits, axis=1, keepdims=True))
        block_total = jnp.sum(jnp.exp(logits - max_logits[...]), axis=1, keepdims=True)
        total[...] = total[...] * jnp.exp(before - max_logits[...]) + block_total

        @pl.when(block.is_last)
        def _() -> None:
            result[...] = max_logits[...] + jnp.log(total[...])

    output = jax.ShapeDtypeStruct((len(x), 1), jnp.float32)
    return _call(kernel, output, x, table, products=1, sums=2, interpret=interpret)[:, 0]


def _gradient(
    x: jax.Array, table: jax.Array, log_sums: jax.Array, gradient: jax.Array, interpret: bool, *, of_table: bool
) -> jax.Array:
    """Computes the gradient of x, [M, D] float32, or of the table, [V, D] float32.

    That of a position is the sum of the rows of the table, and that of a piece the sum of the rows of x, each weighted
    by the probability of the piece at the position and by the incoming gradient.
    """

    def kernel(x: Any, table: Any, log_sums: Any, gradient: Any, result: Any, *, block: _Block) -> None:
        @pl.when(block.is_first)
        def _() -> None:
            result[...] = jnp.zeros_like(result)

        in_range = block.positions < block.length
        x_part, table_part = x[...], table[...]
        if of_table:  # beyond the end of x, or of the table, may be NaN
            x_part = jnp.where(in_range, x_part, 0)
        else:
            table_part = jnp.where(block.vocabulary > block.pieces.T, table_part, 0)
        weights = jnp.exp(product(x_part, table_part, (1, 1)) - log_sums[...]) * gradient[...]
        if of_table:
            weights = jnp.where(in_range, weights, 0.0)
        summed, axis = (x_part, 0) if of_table else (table_part, 1)
        result[...] += product(weights.astype(summed.dtype), summed, (axis, 0))

    output = jax.ShapeDtypeStruct(table.shape if of_table else x.shape, jnp.float32)
    return _call(kernel, output, x, table, log_sums, gradient, products=2, by_piece=of_table, interpret=interpret)


class _Block(NamedTuple):
    """The block that a program processes: the indices of its positions, [block, 1], and of its pieces, [1, block].

    Those of the last blocks may be beyond the length, M, or the vocabulary, V, on this device. `is_first` and `is_last`
    are true for the first and the last of the programs that write the same block of the result.
    """

    positions: jax.Array
    pieces: jax.Array
    length: int
    vocabulary: int
    is_first: jax.Array
    is_last: jax.Array


def _call(
    kernel: Callable[..., None],
    output: jax.ShapeDtypeStruct,
    x: jax.Array,
    table: jax.Array,
    *columns: jax.Array,
    products: int,
    sums: int = 0,
    by_piece: bool = False,
    interpret: bool,
) -> jax.Array:
    """Runs a kernel for all blocks of positions and pieces.

    The outer loop is over the blocks of the result (positions, or pieces if `by_piece`), the inner loop over the other
    blocks. The kernel is given references to x [M, D], table [V, D], the columns [M] as [block, 1], the result, and as
    many `sums` [block, 1], which stay in memory throughout the inner loop. `products` counts its matrix products, for
    the cost estimate.
    """
    length, (vocabulary, width) = len(x), table.shape
    outer = 1 if by_piece else 0
    loops = (1, 0) if by_piece else (0, 1)  # that over positions and that over pieces
    sizes = block_sizes(width, x.dtype.itemsize)
    rows, pieces = min(length, sizes[outer]), min(vocabulary, sizes[1 - outer])
    blocks = pl.cdiv(length, rows), pl.cdiv(vocabulary, pieces)

    def block_spec(size: int, num_columns: int, axis: int) -> pl.BlockSpec:
        return pl.BlockSpec((size, num_columns), lambda *ids: (ids[loops[axis]], 0))

    def run_on_block(*refs: Any) -> None:
        position, piece = map(pl.program_id, loops)
        positions = position * rows + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
        indices = piece * pieces + jax.lax.broadcasted_iota(jnp.int32, (1, pieces), 1)
        is_first, is_last = pl.program_id(1) == 0, pl.program_id(1) == pl.num_programs(1) - 1
        kernel(*refs, block=_Block(positions, indices, length, vocabulary, is_first, is_last))

    input_bytes = (x.nbytes, table.nbytes)
    return pl.pallas_call(
        run_on_block,
        out_shape=output,
        grid=(blocks[outer], blocks[1 - outer]),
        in_specs=[block_spec(rows, width, 0), block_spec(pieces, width, 1), *[block_spec(rows, 1, 0)] * len(columns)],
        out_specs=block_spec(pieces if by_piece else rows, output.shape[1], outer),
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * sums,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * length * vocabulary * width,
            transcendentals=length * vocabulary,
            bytes_accessed=input_bytes[outer] + blocks[outer] * input_bytes[1 - outer] + math.prod(output.shape) * 4,
        ),
        interpret=interpret,
    )(x, table, *(column[:, None] for column in columns))


def block_sizes(width: int, itemsize: int) -> tuple[int, int]:
    """Returns the numbers of positions or pieces per block of the outer loop and per block of the inner loop.

    Blocks of the outer loop, for which the operand (of `itemsize` bytes per element) and the float32 result are
    double-buffered, are as large as memory permits, because the whole other operand is read for each of them.
    """

    def power_of_two(limit: int) -> int:
        return max(128, min(2048, 2 ** int(math.log2(limit))))

    outer = power_of_two(OUTER_BYTES // (width * (2 * itemsize + 2 * 4)))
    return outer, power_of_two(min(INNER_BYTES // (width * itemsize), LOGITS_BYTES // (4 * outer)))
