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
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from configs.errors import UserError
from configs.schema import ModelConfig
from model.attention import FastAttention, SegmentMask

LANES = 128
LONGEST = 512  # positions of a row: the scores of one, forward and backward, have to fit into the memory of a core
ROWS = 8  # that a program takes, one after the other, where as many divide the batch


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def fused_attention(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    head_dim: int,
    causal: bool,
    interpret: bool = False,
) -> jax.Array:
    """Like model.attention.scaled_dot_product_attention with the mask that follows from the segments.

    Args:
      query: [B, T, D], already divided by sqrt(H); heads lie side by side.
      keys, values: [B, S, D].
      query_segments, key_segments: [B, T] and [B, S] int32; a query sees the keys of its own segment, 0 is padding.
      head_dim: H; it divides LANES, and LANES divides D.
      causal: a query sees no key at a later position of the row.
      interpret: run the kernel as plain JAX, on any device.

    Returns: [B, T, D]. A query that sees nothing (padding) gets the mean of all values, which no one reads.
    """
    return _forward(query, keys, values, query_segments, key_segments, head_dim, causal, interpret)[0]


def _forward(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    head_dim: int,
    causal: bool,
    interpret: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    operands = (query, keys, values, query_segments, key_segments)
    kernel = functools.partial(_forward_kernel, head_dim=head_dim, causal=causal)
    return _call(kernel, operands, [query], 2, interpret)[0], operands


def _backward(
    head_dim: int, causal: bool, interpret: bool, operands: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array | None, ...]:
    kernel = functools.partial(_backward_kernel, head_dim=head_dim, causal=causal)
    return (*_call(kernel, (*operands, gradient), list(operands[:3]), 5, interpret), None, None)


fused_attention.defvjp(_forward, _backward)


def _call(
    kernel: Callable[..., tuple[jax.Array, ...]],
    operands: tuple[jax.Array, ...],
    like: list[jax.Array],
    products: int,
    interpret: bool,
) -> list[jax.Array]:
    """Runs a kernel, which computes so many matrix products of each head, over blocks of rows and groups of heads; its
    outputs are like some of its operands."""
    (batch, length, width), keys = operands[0].shape, operands[1].shape[1]
    rows = next(rows for rows in range(ROWS, 0, -1) if batch % rows == 0)

    def block(operand: jax.Array) -> pl.BlockSpec:
        if operand.ndim == 2:  # segments, which come as [B, 1, T]
            return pl.BlockSpec((rows, 1, operand.shape[1]), lambda row, group: (row, 0, 0))
        return pl.BlockSpec((rows, operand.shape[1], LANES), lambda row, group: (row, 0, group))

    return pl.pallas_call(
        functools.partial(_each_row, kernel, rows, len(operands)),
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in like],
        grid=(batch // rows, width // LANES),
        in_specs=[block(operand) for operand in operands],
        out_specs=[block(array) for array in like],
        cost_estimate=pl.CostEstimate(
            flops=2 * products * batch * length * keys * width,
            transcendentals=batch * length * keys * width // LANES,
            bytes_accessed=sum(array.nbytes for array in (*operands, *like)),
        ),
        interpret=interpret,
    )(*(operand[:, None] if operand.ndim == 2 else operand for operand in operands))


def _each_row(kernel: Callable[..., tuple[jax.Array, ...]], rows: int, inputs: int, *refs: Any) -> None:
    """Reads a row of every input, and writes what the kernel makes of it."""

    def one(row: int, _: None) -> None:
        results = kernel(*(ref[row] for ref in refs[:inputs]))
        for ref, result in zip(refs[inputs:], results, strict=True):
            ref[row] = result.astype(ref.dtype)

    jax.lax.fori_loop(0, rows, one, None)


def _forward_kernel(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    *,
    head_dim: int,
    causal: bool,
) -> tuple[jax.Array]:
    """[T, LANES], [S, LANES] twice, [1, T], [1, S] -> [T, LANES]."""
    visible = _visible(query_segments, key_segments, causal)
    output = jnp.zeros(query.shape, jnp.float32)
    for lanes in _heads(head_dim):
        weights = _weights(jnp.where(lanes, query, 0), keys, visible)
        output = jnp.where(lanes, _product(weights.astype(values.dtype), values, (1, 0)), output)
    return (output,)


def _backward_kernel(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
    gradient: jax.Array,
    *,
    head_dim: int,
    causal: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradients of query, keys and values; gradient: that of the output, [T, LANES]."""
    visible = _visible(query_segments, key_segments, causal)
    for_query = jnp.zeros(query.shape, jnp.float32)
    for_keys, for_values = (jnp.zeros(keys.shape, jnp.float32) for _ in range(2))
    for lanes in _heads(head_dim):
        own_query, own_gradient = jnp.where(lanes, query, 0), jnp.where(lanes, gradient, 0)
        weights = _weights(own_query, keys, visible)
        for_values += _product(weights.astype(gradient.dtype), own_gradient, (0, 0))
        for_weights = _product(own_gradient, values, (1, 1))
        for_scores = weights * (for_weights - jnp.sum(weights * for_weights, axis=-1, keepdims=True))
        for_scores = jnp.where(visible, for_scores, 0.0).astype(query.dtype)
        for_query = jnp.where(lanes, _product(for_scores, keys, (1, 0)), for_query)
        for_keys += _product(for_scores, own_query, (0, 0))
    return for_query, for_keys, for_values


def _heads(head_dim: int) -> list[jax.Array]:
    """The lanes of each head, [1, LANES] each: a product of all lanes takes no longer than one of a head's own."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [(lane >= first) & (lane < first + head_dim) for first in range(0, LANES, head_dim)]


def _visible(query_segments: jax.Array, key_segments: jax.Array, causal: bool) -> jax.Array:
    """[1, T], [1, S] -> [T, S]: True where a query may look."""
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
    scores = jnp.where(visible, _product(query, keys, (1, 1)), jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


def _product(one: jax.Array, other: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """The matrix product that sums over these axes, float32."""
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(one, other, axes, preferred_element_type=jnp.float32)


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

        def local(*operands: jax.Array) -> jax.Array:
            return fused_attention(*operands, head_dim, mask.causal, self.interpret)

        rows, heads = PartitionSpec(("data", "fsdp")), PartitionSpec(("data", "fsdp"), None, "tensor")
        shared_out = jax.shard_map(
            local, mesh=self.mesh, in_specs=(heads, heads, heads, rows, rows), out_specs=heads, check_vma=False
        )
        return shared_out(query / math.sqrt(head_dim), keys, values, mask.queries, mask.keys)


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


def fast_attention(config: ModelConfig, mesh: Mesh, dtype: jnp.dtype, row_length: int) -> FastAttention | None:
    """What computes attention in training on this mesh, as model.attention asks; None for equation 1 as it is written.

    "auto" does not choose cuDNN: it was not run on a GPU with this code yet, where its mask and bits are to be checked.

    Raises:
      UserError: it was asked for by name, and cannot be.
    """
    why_not_fused, why_not_cudnn = _why_not_fused(config, mesh, row_length), _why_not_cudnn(config, mesh, dtype)
    reason = {"fused": why_not_fused, "cudnn": why_not_cudnn}.get(config.attention)
    if reason:
        raise UserError(f'model.attention "{config.attention}" {reason}; "auto" takes what there is')
    if config.attention == "cudnn":
        return CudnnAttention()
    return None if config.attention == "plain" or why_not_fused else FusedAttention(mesh)


def _why_not_fused(config: ModelConfig, mesh: Mesh, row_length: int) -> str | None:
    head_dim, width = config.embed_dim // config.num_heads, config.embed_dim // mesh.shape["tensor"]
    if mesh.devices.flat[0].platform != "tpu":
        return "is a kernel for TPUs"
    if config.attention_dropout_rate:
        return "has no dropout of weights (model.attention_dropout_rate)"
    if LANES % head_dim or width % LANES:
        return f"needs heads whose width divides {LANES} and on each device a width that is a multiple of {LANES}"
    if row_length > LONGEST:
        return f"takes rows of at most {LONGEST} positions (data.row_length)"
    return None


def _why_not_cudnn(config: ModelConfig, mesh: Mesh, dtype: jnp.dtype) -> str | None:
    device = mesh.devices.flat[0]
    if device.platform != "gpu" or float(getattr(device, "compute_capability", "8.0")) < 8:
        return "is for NVIDIA GPUs from Ampere on"
    if dtype != jnp.bfloat16:
        return f"computes in bfloat16, not in {dtype} (devices.precision)"
    if config.attention_dropout_rate:
        return "has no dropout of weights that a resumed run repeats (model.attention_dropout_rate)"
    if config.embed_dim // config.num_heads % 8:
        return "needs heads whose width is a multiple of 8"
    return None
