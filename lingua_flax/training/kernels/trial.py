"""The trial of fused attention before the first step: it is used only if it computes what attention as written does.

A kernel may fail to compile, or compute something else, on a device or with a compiler on which nobody has run it.

Shapes: B rows, T positions, D model width, of which a device has those of its heads.
"""

import dataclasses
import functools
import logging
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lingua_flax.devices.mesh import ROW_AXES, mesh_of_one
from lingua_flax.devices.platform import compute_precision
from lingua_flax.devices.processes import first_text_of_all
from lingua_flax.model.attention import AttentionKernel, scaled_dot_product_attention, split_heads
from lingua_flax.model.masks import SegmentMask
from lingua_flax.options.schema import Config
from lingua_flax.training.kernels.fused_attention import FusedAttention, rows_per_program

TIMES = 2.0  # by which the largest deviation of plain attention, in the precision of the run, may be exceeded
# Deviations that are allowed in any case, relative to the largest number: 64 units in the last place of float32. In a
# run in float32, plain attention does not deviate from itself, and fused attention sums in another order.
FLOOR = 64 * float(np.finfo(np.float32).eps)
SENTENCES = 6  # about so many in a row
KINDS = ("self-attention of the encoder", "self-attention of the decoder", "cross-attention")
ARRAYS = ("output", "gradient of the queries", "gradient of the keys", "gradient of the values")
log = logging.getLogger(__name__)


def proven(candidate: FusedAttention, config: Config) -> FusedAttention | None:
    """Returns the candidate if it passes its trial in every process; otherwise None, after a warning that says why.

    Every process must call this. Each tries it on one of its own devices, so none waits for another one's compiler.
    """
    failure = first_text_of_all(_failure(candidate, config))
    if failure:
        log.warning("attention is plain instead of %s, which %s", candidate, failure)
    return None if failure else candidate


class _Batch(NamedTuple):
    """A few packed rows of random numbers, with the shapes that attention has on one device in a step."""

    operands: list[jax.Array]  # queries, keys, values, and the gradient of the output: [B, T, D] float32
    source_segments: jax.Array  # [B, T] int32
    target_segments: jax.Array


def _failure(candidate: FusedAttention, config: Config) -> str:
    """Returns how the candidate fails, to complete a sentence, or "" if it passes."""
    precision = compute_precision(config.devices.precision, candidate.mesh).activations
    alone = dataclasses.replace(candidate, mesh=mesh_of_one(candidate.mesh.local_devices[0]))
    heads = config.model.num_heads // candidate.mesh.shape["tensor"]
    batch = _small_batch(candidate, config)
    try:
        actual = jax.device_get(_output_and_gradients(batch, precision, heads, alone))
    except Exception as error:  # compilers raise errors of many types
        first_line = str(error).partition("\n")[0]
        return f"could not be compiled or run ({type(error).__name__}: {first_line})"
    usual = jax.device_get(_output_and_gradients(batch, precision, heads, _plain))
    with jax.default_matmul_precision("highest"):  # TPUs and GPUs would round the operands of products
        exact = jax.device_get(_output_and_gradients(batch, "float32", heads, _plain))
    names = (f"{array} of the {kind}" for kind in KINDS for array in ARRAYS)
    for name, result, expected, reference in zip(names, actual, usual, exact, strict=True):
        deviation, unavoidable = (float(np.max(np.abs(array - reference))) for array in (result, expected))
        allowed = max(TIMES * unavoidable, FLOOR * float(np.max(np.abs(reference))))
        if not deviation <= allowed:  # it may not be a number
            plain = f"that of plain attention in {precision} by {unavoidable:.2g}"
            return f"is wrong: the {name} deviates from float32 by {deviation:.2g}, {plain}"
    return ""


def _small_batch(candidate: FusedAttention, config: Config) -> _Batch:
    shape, length, draw = candidate.mesh.shape, config.data.row_length, np.random.default_rng(0)
    parts = config.training.accumulation_steps * math.prod(shape[axis] for axis in ROW_AXES)
    rows = _enough_rows(config.rows_per_batch // parts, length, candidate.platform)
    width = config.model.embed_dim // shape["tensor"]
    operands = [jnp.asarray(draw.standard_normal((rows, length, width), np.float32)) for _ in range(4)]
    sides = [1 + np.cumsum(draw.random((rows, length)) < SENTENCES / length, axis=1) for _ in range(2)]
    pairs = np.minimum(*(side.max(axis=1, keepdims=True) for side in sides))
    is_token = np.arange(length) < length - length // 20
    return _Batch(operands, *(jnp.asarray(np.where((side <= pairs) & is_token, side, 0)) for side in sides))


def _enough_rows(rows: int, length: int, platform: str) -> int:
    """Returns the least number of rows for several programs of the kernel, with as many rows each as in a step."""
    each = rows_per_program(rows, length, platform)
    fewer = range(2 * each, rows, each)
    return next((number for number in fewer if rows_per_program(number, length, platform) == each), rows)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _output_and_gradients(batch: _Batch, dtype: str, heads: int, attention: AttentionKernel) -> list[jax.Array]:
    """Returns the ARRAYS of the first of KINDS, of the second and of the third, as float32, computed in this type.

    The operands are the same numbers in every type. Queries that see no key, whose output is never used, count as 0.
    """
    source, target = batch.source_segments, batch.target_segments
    masks = SegmentMask(source, source), SegmentMask(target, target, causal=True), SegmentMask(target, source)
    *inputs, gradient = (split_heads(operand.astype(jnp.bfloat16).astype(dtype), heads) for operand in batch.operands)

    def results(mask: SegmentMask) -> list[jax.Array]:
        output, pull_back = jax.vjp(lambda queries, keys, values: attention(queries, keys, values, mask), *inputs)
        is_used = jnp.any(mask.dense(), axis=-1, keepdims=True)
        return [jnp.where(is_used, output, 0), *pull_back(jnp.where(is_used, gradient, 0))]

    return [array.astype(jnp.float32) for mask in masks for array in results(mask)]


def _plain(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: SegmentMask) -> jax.Array:
    """Computes equation 1 as written."""
    return scaled_dot_product_attention(queries, keys, values, mask.dense())[0]
