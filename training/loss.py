"""Label-smoothed cross-entropy, as a sum and a count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from configs.special_ids import PAD_ID


def cross_entropy(
    logits: jax.Array, targets: jax.Array | np.ndarray, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats against (1 - e) * one-hot + e / V (Szegedy et al. 2016), summed over tokens.

    Sum and count travel apart and are divided once, so that padding, packing, accumulation and sharding give the same.

    Args:
      logits: [B, T, V] float32.
      targets: [B, T]; positions with PAD_ID do not count.

    Returns:
      The sum over the tokens that count, and their number (both float32 scalars).
    """
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    losses = log_normalizer - (1.0 - label_smoothing) * right
    if label_smoothing:
        losses -= label_smoothing * jnp.mean(logits, axis=-1)
    counts = targets != PAD_ID
    return jnp.sum(jnp.where(counts, losses, 0.0)), jnp.sum(counts, dtype=jnp.float32)
