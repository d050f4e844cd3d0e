"""Label-smoothed cross-entropy over the vocabulary, as a sum and a count, computed in blocks of positions.

Shapes: B rows, T positions, D model width, V vocabulary size, M positions in a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from lingua_flax.model.linear import product, transposed_product
from lingua_flax.options.special_ids import PAD_ID

OutputLayer = tuple[jax.Array, jax.Array | None]  # table [V, D] and, if the logits have one, bias [V]


def cross_entropy(
    x: Float[Array, "*B D"],
    table: Float[Array, "V D"],
    targets: Int[Array | np.ndarray, "*B"],
    label_smoothing: float = 0.0,
    block_size: int | None = None,
    bias: Float[Array, "V"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Computes the label-smoothed cross-entropy of softmax(x table^T + bias), in nats, as a sum over tokens, and their
    number.

    With label smoothing e, the target distribution is (1 - e) * one-hot + e / V (Szegedy et al. 2016). Positions with
    PAD_ID do not count. Sum and count are returned separately and divided only once, so that the mean does not depend
    on padding, packing, accumulation or sharding.

    The gradient with respect to the logits is simple enough to be computed along with them. In blocks of about
    `block_size` positions, those of a whole batch are never stored and read back (measured: docs/results/index.md):
    131 MB for 4,096 positions and a vocabulary of 8,000.
    """
    count = jnp.sum(targets != PAD_ID, dtype=jnp.float32)
    return _loss_sum_in_blocks(x, (table, bias), jnp.asarray(targets), label_smoothing, block_size), count


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _loss_sum_in_blocks(
    x: Float[Array, "B T D"],
    output: OutputLayer,
    targets: Int[Array, "B T"],
    label_smoothing: float,
    block_size: int | None,
) -> Float[Array, ""]:
    # XLA leaves out the gradients, which nothing uses here.
    return _forward(x, output, targets, label_smoothing, block_size)[0]


def number_of_blocks(shape: tuple[int, ...], block_size: int | None) -> int:
    """Returns the largest divisor of the rows' length for which a block has at least `block_size` positions, or 1.

    A block takes a part of every row, rather than some of the rows, because rows are sharded across devices.
    """
    rows, length = shape
    fitting = [n for n in range(1, length + 1) if length % n == 0 and block_size and rows * length // n >= block_size]
    return max(fitting, default=1)


def _forward(
    x: jax.Array, output: OutputLayer, targets: jax.Array, label_smoothing: float, block_size: int | None
) -> tuple[jax.Array, tuple[jax.Array, OutputLayer]]:
    table, bias = output

    def add(totals: Any, block: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        loss, gradient = _loss_and_gradient(*block, output, label_smoothing)
        table_gradient = transposed_product(gradient, block[0])
        bias_gradient = None if bias is None else jnp.sum(gradient, axis=0, dtype=jnp.float32)
        x_gradient = product(gradient, table.astype(x.dtype))
        return jax.tree.map(jnp.add, totals, (loss, (table_gradient, bias_gradient))), x_gradient

    blocks = number_of_blocks(targets.shape, block_size)
    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, output))
    (loss, gradients), x_gradient = jax.lax.scan(add, zeros, (_split(x, blocks), _split(targets, blocks)))
    return loss, (_join(x_gradient, x.shape), gradients)


def _backward(
    _: float, __: int | None, gradients: tuple[jax.Array, OutputLayer], scale: jax.Array
) -> tuple[jax.Array, OutputLayer, None]:
    x_gradient, of_output = gradients
    return x_gradient * scale.astype(x_gradient.dtype), jax.tree.map(lambda leaf: leaf * scale, of_output), None


_loss_sum_in_blocks.defvjp(_forward, _backward)


def _loss_and_gradient(
    x: Float[Array, "M D"], targets: Int[Array, "M"], output: OutputLayer, label_smoothing: float
) -> tuple[Float[Array, ""], Float[Array, "M V"]]:
    """Returns the loss sum of a block and its gradient with respect to the logits, in the type of x."""
    table, bias = output
    logits = jnp.einsum("md,vd->mv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias
    max_logits, normalizer = jax.lax.platform_dependent(logits, cuda=_in_one_pass, default=_in_two_passes)
    exponentials = jnp.exp(logits - max_logits)
    target_logits = jnp.take_along_axis(logits, targets[:, None], axis=-1)
    losses = jnp.log(normalizer) + max_logits - (1.0 - label_smoothing) * target_logits
    if label_smoothing:
        losses -= label_smoothing * _mean_logits(x, output)[:, None]
    is_counted = (targets != PAD_ID)[:, None]
    # The target distribution: (1 - e) * one-hot + e / V.
    is_target = jnp.arange(len(table)) == targets[:, None]
    target_distribution = jnp.where(is_target, 1.0 - label_smoothing, 0.0) + label_smoothing / len(table)
    gradient = jnp.where(is_counted, exponentials / normalizer - target_distribution, 0.0)
    return jnp.sum(jnp.where(is_counted, losses, 0.0)), gradient.astype(x.dtype)


def _in_two_passes(logits: Float[Array, "M V"]) -> tuple[Float[Array, "M 1"], Float[Array, "M 1"]]:
    """Returns the maximum of each row, and the sum of its exponentials relative to the maximum."""
    max_logits = jnp.max(logits, axis=-1, keepdims=True)
    return max_logits, jnp.sum(jnp.exp(logits - max_logits), axis=-1, keepdims=True)


def _in_one_pass(logits: Float[Array, "M V"]) -> tuple[Float[Array, "M 1"], Float[Array, "M 1"]]:
    """Computes `_in_two_passes` by an online softmax, for a GPU, which has to read the logits from main memory."""

    def combine(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (max_left, sum_left), (max_right, sum_right) = left, right
        maximum = jnp.maximum(max_left, max_right)
        return maximum, sum_left * jnp.exp(max_left - maximum) + sum_right * jnp.exp(max_right - maximum)

    lowest = jnp.finfo(jnp.float32).min  # not minus infinity, whose difference to itself is not a number
    maximum, total = jax.lax.reduce((logits, jnp.ones_like(logits)), (lowest, jnp.zeros(())), combine, (1,))
    return maximum[:, None], total[:, None]


def _mean_logits(x: Float[Array, "M D"], output: OutputLayer) -> Float[Array, "M"]:
    """Returns the mean of the logits over the vocabulary, from the mean row of the table, without a pass over them."""
    table, bias = output
    mean = jnp.mean(table, axis=0, dtype=jnp.float32)
    means = jnp.einsum("md,d->m", x, mean, preferred_element_type=jnp.float32)
    return means if bias is None else means + jnp.mean(bias)


def _split(array: Shaped[Array, "B T *D"], blocks: int) -> Shaped[Array, "{blocks} M *D"]:
    rows, length = array.shape[:2]
    parts = array.reshape(rows, blocks, length // blocks, *array.shape[2:])
    return jnp.swapaxes(parts, 0, 1).reshape(blocks, -1, *array.shape[2:])


def _join(parts: Shaped[Array, "N M *D"], shape: tuple[int, ...]) -> Shaped[Array, "B T *D"]:
    rows, length = shape[:2]
    blocks = parts.reshape(parts.shape[0], rows, length // parts.shape[0], *shape[2:])
    return jnp.swapaxes(blocks, 0, 1).reshape(shape)
