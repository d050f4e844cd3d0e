"""Attention that never stores its scores: a kernel for TPUs and NVIDIA GPUs.

Computed as written, equation 1 (Vaswani et al. 2017) stores T * S scores per head and row in main memory and reads
them back several times, which takes far longer than its products. Each program of the kernel keeps the scores of its
rows and heads on the chip. The backward pass recomputes the weights, as in Dao et al. (2022); rows of a few hundred
positions do not need their tiling. No two programs add to the same sum, so that gradients are the same every time.

Shapes: B rows, T queries, S keys, D model width, H head width. Heads are concatenated along D. A program processes a
group of G adjacent columns: on a TPU the heads that share the 128 lanes of a vector register, on a GPU a single head.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from lingua_flax.devices.mesh import ROW_AXES
from lingua_flax.devices.platform import compute_precision, is_older_than_ampere
from lingua_flax.devices.sharding import MESH_AXIS_OF
from lingua_flax.host.errors import UserError
from lingua_flax.model.attention import merge_heads, split_heads
from lingua_flax.model.masks import SegmentMask
from lingua_flax.options.precision import BFLOAT16
from lingua_flax.options.schema import Config

LANES = 128
LONGEST = 512  # maximum length of a row on a TPU, whose scores must fit into the memory of a core, forward and backward
ROWS, POSITIONS = 8, 1024  # maximum per program on a TPU: the nine blocks of the backward pass, double-buffered, fit in
# On a GPU: head widths and row lengths that Triton can tile and whose operands fit into shared memory (compiled for an
# A100, A10, L4, H100, B200 and RTX 5090), and the warps that share a program. The backward pass of one attention of the
# base model takes 0.20 ms with 8 warps, 0.73 with 4 (an H200, a variant of this kernel).
GPU_WIDTHS, GPU_LENGTHS, WARPS = (16, 32, 64), (16, 32, 64, 128), 8
POSITIONS_BEFORE = ("sinusoidal", "learned", "rotary")  # encodings that have changed its operands, and no scores


class Operands(NamedTuple):
    """The inputs of attention: [B, T, D], divided by sqrt(H), twice [B, S, D], and segments [B, T] and [B, S].

    Inside a kernel they hold a single row and a single group of heads: [T, G] and [S, G], and [1, T] and [1, S].
    """

    query: jax.Array
    keys: jax.Array
    values: jax.Array
    query_segments: jax.Array
    key_segments: jax.Array


class Options(NamedTuple):
    """Static options of the kernel: H, which divides G, the causal mask, and as in `FusedAttention`."""

    head_dim: int
    causal: bool
    platform: Literal["tpu", "gpu"]
    interpret: bool

    @property
    def group(self) -> int:
        """G, which must divide D."""
        return LANES if self.platform == "tpu" else self.head_dim


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def fused_attention(operands: Operands, options: Options) -> jax.Array:
    """Computes `model.attention.scaled_dot_product_attention`, [B, T, D], with the mask that follows from the segments.

    A query that may attend to no key (padding) gets the mean of all values; its output is never used.
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
    extra_inputs: tuple[jax.Array, ...],
    output_templates: list[jax.Array],
    products: int,
    options: Options,
) -> list[jax.Array]:
    """Runs a kernel over blocks of rows and groups of heads; one call of it computes one row and one group.

    The extra inputs are [B, T, D], the outputs have the shapes and types of their templates, and `products` counts the
    matrix products per head, for the cost estimate.
    """
    inputs = (*operands, *extra_inputs)
    (batch, length, width), keys = operands.query.shape, operands.keys.shape[1]
    rows = rows_per_program(batch, max(length, keys), options.platform)

    def run_on_rows(*refs: Any) -> None:
        def run_on_row(row: int, _: None) -> None:
            values = [ref[row] for ref in refs[: len(inputs)]]
            results = kernel(Operands(*values[:5]), *values[5:], options=options)
            for ref, result in zip(refs[len(inputs) :], results, strict=True):
                ref[row] = result.astype(ref.dtype)

        if rows == 1:
            run_on_row(0, None)
        else:
            jax.lax.fori_loop(0, rows, run_on_row, None)

    def block(operand: jax.Array) -> pl.BlockSpec:
        if operand.ndim == 2:  # segments, passed as [B, 1, T] or [B, 1, S]
            return pl.BlockSpec((rows, 1, operand.shape[1]), lambda row, group: (row, 0, 0))
        return pl.BlockSpec((rows, operand.shape[1], options.group), lambda row, group: (row, 0, group))

    params: Any = None
    if options.platform == "gpu":
        from jax.experimental.pallas import triton  # not part of JAX on every platform

        params = triton.CompilerParams(num_warps=WARPS, num_stages=1)
    return pl.pallas_call(
        run_on_rows,
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in output_templates],
        grid=(batch // rows, width // options.group),
        in_specs=[block(array) for array in inputs],
        out_specs=[block(array) for array in output_templates],
        cost_estimate=pl.CostEstimate(
            flops=2 * products * batch * length * keys * width,
            transcendentals=batch * length * keys * width // options.head_dim,
            bytes_accessed=sum(array.nbytes for array in (*inputs, *output_templates)),
        ),
        interpret=options.interpret,
        compiler_params=params,
    )(*(array[:, None] if array.ndim == 2 else array for array in inputs))


def rows_per_program(rows: int, length: int, platform: str) -> int:
    """Returns how many of these rows, a divisor of their number, each program of the kernel processes."""
    max_rows = 1 if platform == "gpu" else max(1, min(ROWS, POSITIONS // length))
    return next(number for number in range(max_rows, 0, -1) if rows % number == 0)


def _forward_kernel(row: Operands, *, options: Options) -> tuple[jax.Array]:
    """Computes the output, [T, G]."""
    visible = _visible(row, causal=options.causal)
    output = jnp.zeros(row.query.shape, jnp.float32)
    for lanes in _head_lanes(options):
        exponentials, sums = _exponentials(jnp.where(lanes, row.query, 0), row.keys, visible)
        total = _product(exponentials.astype(row.values.dtype), row.values, (1, 0))
        output = jnp.where(lanes, total / sums, output)
    return (output,)


def _backward_kernel(row: Operands, gradient: jax.Array, *, options: Options) -> tuple[jax.Array, ...]:
    """Computes the gradients of query, keys and values from the gradient of the output, [T, G]."""
    visible = _visible(row, causal=options.causal)
    d_query = jnp.zeros(row.query.shape, jnp.float32)
    d_keys, d_values = (jnp.zeros(row.keys.shape, jnp.float32) for _ in range(2))
    for lanes in _head_lanes(options):
        head_query, head_gradient = jnp.where(lanes, row.query, 0), jnp.where(lanes, gradient, 0)
        exponentials, sums = _exponentials(head_query, row.keys, visible)
        weights = exponentials / sums
        d_values += _product(weights.astype(gradient.dtype), head_gradient, (0, 0))
        d_weights = _product(head_gradient, row.values, (1, 1))
        d_scores = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
        d_scores = jnp.where(visible, d_scores, 0.0).astype(row.query.dtype)
        d_query = jnp.where(lanes, _product(d_scores, row.keys, (1, 0)), d_query)
        d_keys += _product(d_scores, head_query, (0, 0))
    return d_query, d_keys, d_values


def _product(left: jax.Array, right: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    """Returns the matrix product, float32, that sums over axis contracted[0] of left and contracted[1] of right."""
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def _head_lanes(options: Options) -> list[jax.Array]:
    """Returns a mask [1, G] of the columns of each head in a group.

    Heads are masked rather than sliced: a product over all lanes takes no longer than one over the lanes of one head.
    """
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, options.group), 1)
    return [(lane >= first) & (lane < first + options.head_dim) for first in range(0, options.group, options.head_dim)]


def _visible(operands: Operands, *, causal: bool) -> jax.Array:
    """Returns the mask [T, S], True where a query may attend to a key."""
    query_segments, key_segments = operands[3:]
    length, keys = query_segments.shape[1], key_segments.shape[1]
    visible = (query_segments.reshape(length, 1) == key_segments) & (key_segments > 0)
    if causal:
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (length, keys), axis) for axis in (0, 1))
        visible &= column <= row
    return visible


def _exponentials(query: jax.Array, keys: jax.Array, visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the softmax of the scores of a head as a fraction: [T, S] divided by [T, 1], float32.

    Its rows are uniform for queries that may attend to no key.
    """
    scores = jnp.where(visible, _product(query, keys, (1, 1)), jnp.finfo(jnp.float32).min)
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials, jnp.sum(exponentials, axis=-1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """`fused_attention` on a mesh that shards rows and heads, compiled for `platform`.

    With `interpret`, the kernel is run as plain JAX, which works on any device.
    """

    mesh: Mesh
    platform: Literal["tpu", "gpu"]
    interpret: bool = False

    def __str__(self) -> str:
        return "fused"

    def __call__(self, queries: jax.Array, keys: jax.Array, values: jax.Array, mask: SegmentMask) -> jax.Array:
        """Computes attention for queries [B, N, T, H], keys and values [B, N, S, H]; returns [B, N, T, H]."""
        num_heads, _, head_dim = queries.shape[1:]
        merged = merge_heads(queries) / math.sqrt(head_dim)
        operands = Operands(merged, merge_heads(keys), merge_heads(values), mask.queries, mask.keys)
        options = Options(head_dim, mask.causal, self.platform, self.interpret)
        local = functools.partial(fused_attention, options=options)
        rows, heads = PartitionSpec(ROW_AXES), PartitionSpec(ROW_AXES, None, MESH_AXIS_OF["heads"])
        specs = Operands._make([heads, heads, heads, rows, rows])
        # XLA cannot partition a kernel by itself.
        on_each_device = jax.shard_map(local, mesh=self.mesh, in_specs=(specs,), out_specs=heads, check_vma=False)
        return split_heads(on_each_device(operands), num_heads)


def selected_attention(config: Config, mesh: Mesh) -> FusedAttention | None:
    """Returns the attention for training on this mesh, by the option model.attention; None is equation 1 as written.

    On TPUs, where no run of the kernel has been recorded, it must be chosen by name. Before the first step, `trial`
    compares it with equation 1. Raises UserError if "fused" does not support this configuration or this mesh.
    """
    requested, platform = config.model.attention, mesh.devices.flat[0].platform
    if requested == "plain" or (requested == "auto" and platform == "tpu"):
        return None
    reason = _why_not_fused(config, mesh)
    if reason and requested == "fused":
        raise UserError(f'model.attention "fused" {reason}; use "auto" to select a supported implementation')
    return None if reason else FusedAttention(mesh, platform)


def _why_not_fused(config: Config, mesh: Mesh) -> str | None:
    """Returns why `FusedAttention` cannot be used, to complete an error message, or None if it can."""
    model, length = config.model, config.data.row_length
    head_dim, width = model.embed_dim // model.num_heads, model.embed_dim // mesh.shape["tensor"]
    device = mesh.devices.flat[0]
    if device.platform not in ("tpu", "gpu") or is_older_than_ampere(device):
        return "runs only on TPUs and on NVIDIA GPUs of the Ampere generation or later"
    if model.positions not in POSITIONS_BEFORE:
        return f"does not support {model.positions} positions (model.positions)"
    if device.platform == "gpu":
        if (precision := compute_precision(config.devices.precision, mesh)) != BFLOAT16:
            return f"computes in bfloat16 on GPUs, not in {precision.activations} (devices.precision)"
        if head_dim not in GPU_WIDTHS or length not in GPU_LENGTHS:
            return f"needs on GPUs a head width in {GPU_WIDTHS} and a data.row_length in {GPU_LENGTHS}"
        return None
    if LANES % head_dim or width % LANES:
        return f"needs a head width that divides {LANES} and, per device, a model width that is a multiple of {LANES}"
    if length > LONGEST:
        return f"supports rows of at most {LONGEST} positions (data.row_length)"
    return None
