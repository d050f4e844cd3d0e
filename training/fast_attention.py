"""Attention that never writes its scores: a kernel for TPUs that computes whole rows in the chip's vector memory.

Between the matrix products of equation 1 (Vaswani et al. 2017) lie T times S numbers for each head and row, which are
written to main memory and read again several times, forward and backward; on a TPU that takes far longer than the
products. Here a program takes some rows of a few heads, and what lies between the products stays where it was computed;
the backward pass computes the weights once more (as Dao et al. 2022, whose tiles packed rows of a few hundred positions
do not need).

B rows, T queries, S keys, D model width, N heads, H head width, G heads that share the 128 lanes of a vector register.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from devices.mesh import ROW_AXES
from devices.platform import compute_dtype
from devices.sharding import SHARED_BY
from host.errors import UserError
from model.attention import FastAttention
from model.masks import SegmentMask
from options.schema import Config
from training.kernels import on_each_device, product

LANES = 128
LONGEST = 512  # positions of a row: the scores of one, forward and backward, have to fit into the memory of a core
ROWS, POSITIONS = 8, 1024  # that a program takes at most: all nine blocks of the backward pass have to fit in twice


class Operands(NamedTuple):
    """What attention is computed of; heads lie side by side.

    query: [B, T, D], already divided by sqrt(H); keys, values: [B, S, D]; query_segments, key_segments: [B, T] and
    [B, S] int32, where 0 is padding. Inside a kernel they are those of one row and one group of heads: [T, LANES],
    [S, LANES] and, of segments, [1, T] and [1, S].
    """

    query: jax.Array
    keys: jax.Array
    values: jax.Array
    query_segments: jax.Array
    key_segments: jax.Array


class Options(NamedTuple):
    """head_dim: H, which divides LANES, which divides D; causal: a query sees no key at a later position of the row;
    interpret: the kernel runs as plain JAX, on any device."""

    head_dim: int
    causal: bool
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def fused_attention(operands: Operands, options: Options) -> jax.Array:
    """Like model.attention.scaled_dot_product_attention with the mask that follows from the segments: [B, T, D].

    A query that sees nothing (padding) gets the mean of all values, which no one reads.
    """
    return _forward(operands, options)[0]


def _forward(operands: Operands, options: Options) -> tuple[jax.Array, Operands]:
    return _call(_forward_kernel, operands, (), [operands.query], 2, options)[0], operands


def _backward(options: Options, operands: Operands, gradient: jax.Array) -> tuple[Operands]:
    gradients = _call(_backward_kernel, operands, (gradient,), list(operands[:3]), 5, options)
    return (Operands._make([*gradients, None, None]),)  # segments are integers


fused_attention.defvjp(_forward, _backward)


def _call(
    kernel: Callable[..., tuple[jax.Array, ...]],
    operands: Operands,
    further: tuple[jax.Array, ...],
    like: list[jax.Array],
    products: int,
    options: Options,
) -> list[jax.Array]:
    """Runs a kernel, which computes so many matrix products of each head, over blocks of rows and groups of heads.

    Args:
      further: arrays [B, T, D] that the kernel is given as well.
      like: those that its results are like.
    """
    read = (*operands, *further)
    (batch, length, width), keys = operands.query.shape, operands.keys.shape[1]
    most = max(1, min(ROWS, POSITIONS // max(length, keys)))
    rows = next(rows for rows in range(most, 0, -1) if batch % rows == 0)

    def each_row(*refs: Any) -> None:
        def one(row: int, _: None) -> None:
            values = [ref[row] for ref in refs[: len(read)]]
            results = kernel(Operands(*values[:5]), *values[5:], options=options)
            for ref, result in zip(refs[len(read) :], results, strict=True):
                ref[row] = result.astype(ref.dtype)

        jax.lax.fori_loop(0, rows, one, None)

    def block(operand: jax.Array) -> pl.BlockSpec:
        if operand.ndim == 2:  # segments, which come as [B, 1, T]
            return pl.BlockSpec((rows, 1, operand.shape[1]), lambda row, group: (row, 0, 0))
        return pl.BlockSpec((rows, operand.shape[1], LANES), lambda row, group: (row, 0, group))

    return pl.pallas_call(
        each_row,
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in like],
        grid=(batch // rows, width // LANES),
        in_specs=[block(array) for array in read],
        out_specs=[block(array) for array in like],
        cost_estimate=pl.CostEstimate(
            flops=2 * products * batch * length * keys * width,
            transcendentals=batch * length * keys * width // options.head_dim,
            bytes_accessed=sum(array.nbytes for array in (*read, *like)),
        ),
        interpret=options.interpret,
    )(*(array[:, None] if array.ndim == 2 else array for array in read))


def _forward_kernel(row: Operands, *, options: Options) -> tuple[jax.Array]:
    """The output, [T, LANES]."""
    visible = _visible(row, causal=options.causal)
    output = jnp.zeros(row.query.shape, jnp.float32)
    for lanes in _heads(options.head_dim):
        weights = _weights(jnp.where(lanes, row.query, 0), row.keys, visible)
        output = jnp.where(lanes, product(weights.astype(row.values.dtype), row.values, (1, 0)), output)
    return (output,)


def _backward_kernel(row: Operands, gradient: jax.Array, *, options: Options) -> tuple[jax.Array, ...]:
    """The gradients of query, keys and values; gradient: that of the output, [T, LANES]."""
    visible = _visible(row, causal=options.causal)
    for_query = jnp.zeros(row.query.shape, jnp.float32)
    for_keys, for_values = (jnp.zeros(row.keys.shape, jnp.float32) for _ in range(2))
    for lanes in _heads(options.head_dim):
        own_query, own_gradient = jnp.where(lanes, row.query, 0), jnp.where(lanes, gradient, 0)
        weights = _weights(own_query, row.keys, visible)
        for_values += product(weights.astype(gradient.dtype), own_gradient, (0, 0))
        for_weights = product(own_gradient, row.values, (1, 1))
        for_scores = weights * (for_weights - jnp.sum(weights * for_weights, axis=-1, keepdims=True))
        for_scores = jnp.where(visible, for_scores, 0.0).astype(row.query.dtype)
        for_query = jnp.where(lanes, product(for_scores, row.keys, (1, 0)), for_query)
        for_keys += product(for_scores, own_query, (0, 0))
    return for_query, for_keys, for_values


def _heads(head_dim: int) -> list[jax.Array]:
    """The lanes of each head, [1, LANES] each: a product of all lanes takes no longer than one of a head's own."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [(lane >= first) & (lane < first + head_dim) for first in range(0, LANES, head_dim)]


def _visible(operands: Operands, *, causal: bool) -> jax.Array:
    """[T, S]: True where a query may look."""
    _, _, _, query_segments, key_segments = operands
    length, keys = query_segments.shape[1], key_segments.shape[1]
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (length, length), axis) for axis in (0, 1))
    of_query = jnp.sum(jnp.where(row == column, query_segments, 0), axis=1, keepdims=True)  # [T, 1]: lanes to rows
    visible = (of_query == key_segments) & (key_segments > 0)
    if causal:
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (length, keys), axis) for axis in (0, 1))
        visible &= column <= row
    return visible


def _weights(query: jax.Array, keys: jax.Array, visible: jax.Array) -> jax.Array:
    """The softmax of a head's scores, [T, S] float32; uniform where nothing is visible."""
    scores = jnp.where(visible, product(query, keys, (1, 1)), jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """`fused_attention` on a mesh whose devices share out rows and heads."""

    mesh: Mesh
    interpret: bool = False

    def __str__(self) -> str:
        return "fused"

    def __call__(
        self, query: jax.Array, keys: jax.Array, values: jax.Array, num_heads: int, mask: SegmentMask
    ) -> jax.Array:
        """[B, T, D], [B, S, D] twice -> [B, T, D]."""
        head_dim = query.shape[-1] // num_heads
        options = Options(head_dim, mask.causal, self.interpret)

        def local(operands: Operands) -> jax.Array:
            return fused_attention(operands, options)

        rows, heads = PartitionSpec(ROW_AXES), PartitionSpec(ROW_AXES, None, SHARED_BY["heads"])
        operands = Operands(query / math.sqrt(head_dim), keys, values, mask.queries, mask.keys)
        return on_each_device(local, self.mesh, (Operands._make([heads, heads, heads, rows, rows]),), heads)(operands)


@dataclasses.dataclass(frozen=True)
class CudnnAttention:
    """The attention of NVIDIA's cuDNN (bfloat16 or float16), by jax.nn; `implementation` "xla" runs anywhere."""

    implementation: Literal["cudnn", "xla"] = "cudnn"

    def __str__(self) -> str:
        return "cudnn"

    def __call__(
        self, query: jax.Array, keys: jax.Array, values: jax.Array, num_heads: int, mask: SegmentMask
    ) -> jax.Array:
        """[B, T, D], [B, S, D] twice -> [B, T, D]."""
        heads = [array.reshape(*array.shape[:2], num_heads, -1) for array in (query, keys, values)]
        output = jax.nn.dot_product_attention(
            heads[0], heads[1], heads[2], mask=mask.dense(), implementation=self.implementation
        )
        return output.reshape(query.shape)


def fast_attention(config: Config, mesh: Mesh) -> FastAttention | None:
    """What computes attention in training on this mesh, as model.attention asks; None for equation 1 as it is written.

    "auto" does not choose cuDNN: it was not run on a GPU with this code yet, where its mask and bits are to be checked.

    Raises:
      UserError: it was asked for by name, and cannot be.
    """
    asked = config.model.attention
    why_not_fused = _why_not_fused(config, mesh)
    reason = {"fused": why_not_fused, "cudnn": _why_not_cudnn(config, mesh)}.get(asked)
    if reason:
        raise UserError(f'model.attention "{asked}" {reason}; "auto" takes what there is')
    if asked == "cudnn":
        return CudnnAttention()
    return None if asked == "plain" or why_not_fused else FusedAttention(mesh)


def _why_not_fused(config: Config, mesh: Mesh) -> str | None:
    model = config.model
    head_dim, width = model.embed_dim // model.num_heads, model.embed_dim // mesh.shape["tensor"]
    if mesh.devices.flat[0].platform != "tpu":
        return "is a kernel for TPUs"
    if model.attention_dropout_rate:
        return "has no dropout of weights (model.attention_dropout_rate)"
    if LANES % head_dim or width % LANES:
        return f"needs heads whose width divides {LANES} and on each device a width that is a multiple of {LANES}"
    if config.data.row_length > LONGEST:
        return f"takes rows of at most {LONGEST} positions (data.row_length)"
    return None


def _why_not_cudnn(config: Config, mesh: Mesh) -> str | None:
    device, dtype = mesh.devices.flat[0], compute_dtype(config.devices.precision, mesh)
    if device.platform != "gpu" or float(getattr(device, "compute_capability", "8.0")) < 8:
        return "is for NVIDIA GPUs from Ampere on"
    if dtype != jnp.bfloat16:
        return f"computes in bfloat16, not in {dtype} (devices.precision)"
    if config.model.attention_dropout_rate:
        return "has no dropout of weights that a resumed run repeats (model.attention_dropout_rate)"
    if config.model.embed_dim // config.model.num_heads % 8:
        return "needs heads whose width is a multiple of 8"
    return None
