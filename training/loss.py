"""Label-smoothed cross-entropy over the vocabulary, as a sum and a count, computed in blocks of positions.

Shapes: B rows, T positions, D model width, V vocabulary size, M positions in a block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from options.special_ids import PAD_ID

# (x [M, D], table [V, D]), both of the same type -> log(sum over v of exp(x . table[v])), [M] float32.
LogNormalizer = Callable[[jax.Array, jax.Array], jax.Array]


def cross_entropy(
    x: Float[Array, "*B D"],
    table: Float[Array, "V D"],
    targets: Int[Array | np.ndarray, "*B"],
    label_smoothing: float = 0.0,
    block_size: int | None = None,
    log_normalizer: LogNormalizer | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Computes the label-smoothed cross-entropy of softmax(x table^T), in nats, summed over tokens.

    With label smoothing e, the target distribution is (1 - e) * one-hot + e / V (Szegedy et al. 2016). Sum and count
    are returned separately and divided only once, so that the mean does not depend on padding, packing, accumulation or
    sharding.

    The gradient with respect to the logits is simple enough to be computed along with them. Computed in blocks, the
    logits of a whole batch are never stored and read back (measured: benchmarks/RESULTS.md): 131 MB for 4,096 positions
    and a vocabulary of 8,000.

    Args:
      x: The decoder's output, [B, T, D].
      table: The output embedding matrix, [V, D] float32.
      targets: Token ids, [B, T]; positions with PAD_ID do not count.
      label_smoothing: e.
      block_size: Approximate number of positions per block; None for a single block.
      log_normalizer: Computes the logarithm of the softmax's denominator without storing logits; if given, the loss is
        not computed in blocks.

    Returns:
      The sum of the losses of the tokens that count, and the number of these tokens (both float32 scalars).
    """
    count = jnp.sum(targets != PAD_ID, dtype=jnp.float32)
    if log_normalizer:
        return _loss_sum_with_normalizer(x, table, jnp.asarray(targets), label_smoothing, log_normalizer), count
    rows, length = targets.shape
    blocks = _number_of_blocks(rows, length, block_size)
    total = _loss_sum(x, table, jnp.asarray(targets), label_smoothing, blocks)
    return total, count


def _loss_sum_with_normalizer(
    x: Float[Array, "*B D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "*B"],
    label_smoothing: float,
    log_normalizer: LogNormalizer,
) -> Float[Array, ""]:
    """Computes the loss sum from the log normalizer, the target logits and the mean logits only."""
    x, targets, table = x.reshape(-1, x.shape[-1]), targets.reshape(-1), table.astype(x.dtype)
    target_logits = jnp.einsum("md,md->m", x, table[targets], preferred_element_type=jnp.float32)
    losses = log_normalizer(x, table) - (1.0 - label_smoothing) * target_logits
    if label_smoothing:
        mean = jnp.mean(table, axis=0, dtype=jnp.float32)
        losses -= label_smoothing * jnp.einsum("md,d->m", x, mean, preferred_element_type=jnp.float32)
    return jnp.sum(jnp.where(targets != PAD_ID, losses, 0.0))


def _number_of_blocks(rows: int, length: int, block_size: int | None) -> int:
    """Returns the largest divisor of `length` for which a block has at least `block_size` positions, or 1.

    A block takes a part of every row, rather than some of the rows, because rows are sharded across devices.
    """
    fitting = [n for n in range(1, length + 1) if length % n == 0 and block_size and rows * length // n >= block_size]
    return max(fitting, default=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _loss_sum(x: jax.Array, table: jax.Array, targets: jax.Array, label_smoothing: float, blocks: int) -> jax.Array:
    def add(total: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + _losses_and_gradient(*block, table, label_smoothing)[0], None

    return jax.lax.scan(add, jnp.zeros(()), (_split(x, blocks), _split(targets, blocks)))[0]


def _loss_sum_and_gradients(
    x: jax.Array, table: jax.Array, targets: jax.Array, label_smoothing: float, blocks: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def add(
        sums: tuple[jax.Array, jax.Array], block: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        loss, gradient = _losses_and_gradient(*block, table, label_smoothing)
        table_gradient = jnp.einsum("mv,md->vd", gradient, block[0], preferred_element_type=jnp.float32)
        return (sums[0] + loss, sums[1] + table_gradient), jnp.einsum("mv,vd->md", gradient, table.astype(x.dtype))

    zeros = (jnp.zeros(()), jnp.zeros_like(table))
    (loss, table_gradient), x_gradient = jax.lax.scan(add, zeros, (_split(x, blocks), _split(targets, blocks)))
    return loss, (_join(x_gradient, x.shape), table_gradient)


def _scale_gradients(
    label_smoothing: float, blocks: int, gradients: tuple[jax.Array, jax.Array], scale: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_gradient, table_gradient = gradients
    return x_gradient * scale.astype(x_gradient.dtype), table_gradient * scale, None


_loss_sum.defvjp(_loss_sum_and_gradients, _scale_gradients)


def _losses_and_gradient(
    x: Float[Array, "M D"], targets: Int[Array, "M"], table: Float[Array, "V D"], label_smoothing: float
) -> tuple[Float[Array, ""], Float[Array, "M V"]]:
    """Returns the loss sum of a block and its gradient with respect to the logits, in the type of x."""
    logits = jnp.einsum("md,vd->mv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    vocabulary = logits.shape[-1]
    max_logits = jnp.max(logits, axis=-1, keepdims=True)
    exponentials = jnp.exp(logits - max_logits)
    normalizer = jnp.sum(exponentials, axis=-1, keepdims=True)
    target_logits = jnp.take_along_axis(logits, targets[:, None], axis=-1)
    losses = jnp.log(normalizer) + max_logits - (1.0 - label_smoothing) * target_logits
    if label_smoothing:
        losses -= label_smoothing * jnp.mean(logits, axis=-1, keepdims=True)
    is_counted = (targets != PAD_ID)[:, None]
    is_target = jnp.arange(vocabulary) == targets[:, None]
    target_probabilities = jnp.where(is_target, 1.0 - label_smoothing, 0.0) + label_smoothing / vocabulary
    gradient = jnp.where(is_counted, exponentials / normalizer - target_probabilities, 0.0)
    return jnp.sum(jnp.where(is_counted, losses, 0.0)), gradient.astype(x.dtype)


def _split(array: Shaped[Array, "B T *D"], blocks: int) -> Shaped[Array, "{blocks} M *D"]:
    """Splits all rows into blocks."""
    rows, length = array.shape[:2]
    parts = array.reshape(rows, blocks, length // blocks, *array.shape[2:])
    return jnp.swapaxes(parts, 0, 1).reshape(blocks, -1, *array.shape[2:])


def _join(parts: Shaped[Array, "N M *D"], shape: tuple[int, ...]) -> Shaped[Array, "B T *D"]:
    """Joins blocks to an array of this shape: the inverse of `_split`."""
    rows, length = shape[:2]
    blocks = parts.reshape(parts.shape[0], rows, length // parts.shape[0], *shape[2:])
    return jnp.swapaxes(blocks, 0, 1).reshape(shape)
