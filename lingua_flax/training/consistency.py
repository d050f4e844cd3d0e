"""Consistency training: every sentence passes through the network twice, and the two predictions have to agree.

Shapes: R rows, T positions, D model width, V vocabulary size, M positions in a block; P = 2 passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lingua_flax.data.batch import Batch
from lingua_flax.options.schema import TrainingConfig
from lingua_flax.options.special_ids import BOS_ID, PAD_ID
from lingua_flax.training.loss import blocked_sums, smoothed_targets

_FIRST_DRAW = 2**31  # beyond the numbers of dropout sites, which are drawn from the same key


class ConsistencySums(NamedTuple):
    """Sums over the tokens of a batch, float32 scalars.

    Attributes:
      objective: What training minimizes.
      cross_entropy: The label-smoothed cross-entropy; with R-Drop, the mean of both passes.
      divergence: The Kullback-Leibler divergence between the two passes; with R-Drop, the mean of both directions.
    """

    objective: jax.Array
    tokens: jax.Array
    cross_entropy: jax.Array
    divergence: jax.Array


def two_passes(batch: Batch) -> Batch:
    """Returns the batch with each row twice, one directly after the other, so that both stay on the same device."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), batch)


def draw_keep_masks(
    key: jax.Array, batch: Batch, cut_rate: float, num_tags: int = 0
) -> tuple[Bool[Array, "R2 S"], Bool[Array, "R2 T"]]:
    """Draws which tokens of the source and of the target input keep their embeddings, in rows made by `two_passes`.

    Token cutoff (Shen et al. 2020): in the second pass over each row, each embedding is cut with probability
    `cut_rate`, while its position stays. The tokens that begin and end sentences are never cut, and neither are the
    first `num_tags` tokens of a source sentence: without the tag of the target language, the second pass would predict
    a mixture of languages.
    """

    def draw(number: int, ids: Int[Array, "R2 T"]) -> Bool[Array, "R2 T"]:
        is_first_pass = (jnp.arange(len(ids)) % 2 == 0)[:, None]
        drawn = jax.random.bernoulli(jax.random.fold_in(key, number), 1.0 - cut_rate, ids.shape)
        return is_first_pass | (ids <= BOS_ID) | drawn

    source = draw(_FIRST_DRAW, jnp.asarray(batch.source)) | (jnp.asarray(batch.source_positions) < num_tags)
    return source, draw(_FIRST_DRAW + 1, jnp.asarray(batch.target_in))


def consistent_cross_entropy(
    x: Float[Array, "R2 T D"],
    table: Float[Array, "V D"],
    targets: Int[Array | np.ndarray, "R2 T"],
    config: TrainingConfig,
    block_size: int | None = None,
) -> ConsistencySums:
    """Computes cross-entropy and divergence between the two passes over each row, summed over tokens.

    "rdrop" (Liang et al. 2021) minimizes CE_1 + CE_2 + w * (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2; the objective here is
    half of that, so that the scale of the loss does not change. "simcut" (Gao et al. 2022) minimizes
    CE_1 + w * KL(p_1 || p_2), where p_2 is predicted from cut embeddings. Both distributions receive gradients.

    The rows are those made by `two_passes`; positions with PAD_ID do not count. `block_size` is as in `cross_entropy`.
    """
    passes = jnp.moveaxis(x.reshape(-1, 2, *x.shape[1:]), 1, 2)
    loss = _ConsistentCrossEntropy(config.label_smoothing, config.consistency_weight, config.consistency == "rdrop")
    return ConsistencySums(*blocked_sums(passes, table, jnp.asarray(targets)[::2], loss, block_size))


class _ConsistentCrossEntropy(NamedTuple):
    label_smoothing: float
    weight: float
    symmetric: bool  # R-Drop
    num_sums: int = len(ConsistencySums._fields)

    def __call__(
        self, x: Float[Array, "M 2 D"], targets: Int[Array, "M"], table: Float[Array, "V D"]
    ) -> tuple[tuple[Float[Array, ""], ...], Float[Array, "M 2 V"]]:
        logits = jnp.einsum("mpd,vd->mpv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
        is_counted = targets != PAD_ID
        expected = smoothed_targets(targets, logits.shape[-1], self.label_smoothing)

        def total(values: Float[Array, "M"]) -> Float[Array, ""]:
            return jnp.sum(jnp.where(is_counted, values, 0.0))

        def objective(logits: Float[Array, "M 2 V"]) -> tuple[Float[Array, ""], Any]:
            first, second = jnp.moveaxis(jax.nn.log_softmax(logits), 1, 0)
            divergence = jnp.sum(jnp.exp(first) * (first - second), axis=-1)
            cross_entropy = -jnp.sum(expected * first, axis=-1)
            weight = self.weight
            if self.symmetric:
                divergence = (divergence + jnp.sum(jnp.exp(second) * (second - first), axis=-1)) / 2
                cross_entropy = (cross_entropy - jnp.sum(expected * second, axis=-1)) / 2
                weight = self.weight / 2
            minimized = total(cross_entropy + weight * divergence)
            tokens = jnp.sum(is_counted, dtype=jnp.float32)
            return minimized, ConsistencySums(minimized, tokens, total(cross_entropy), total(divergence))

        (_, sums), gradient = jax.value_and_grad(objective, has_aux=True)(logits)
        return tuple(sums), gradient.astype(x.dtype)
