"""Position encodings: sinusoids, which are added to embeddings, and rotations, which are applied to queries and keys.

Shapes: B batch, T length, D model width, N heads, H head width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def sinusoidal_positions(length: int, embed_dim: int, base: float) -> Float[Array, "{length} {embed_dim}"]:
    """Returns the sinusoidal position encodings (Vaswani et al. 2017, section 3.5); `embed_dim` must be even.

    Dimensions 2i and 2i + 1 hold the sine and the cosine of position / base**(2i / embed_dim).
    """
    angles = _angles(jnp.arange(length), embed_dim, base)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, embed_dim)


class RotaryEmbedding(NamedTuple):
    """Rotary position embedding: rotates each head at position t by t times the sinusoids' angular frequencies.

    See Su et al. (2021), section 3.2. The product of a rotated query and a rotated key depends only on the distance
    between their positions. Dimension i is paired with dimension i + H / 2, and the first H / 2 sines are negated.
    """

    cosines: Float[Array, "B 1 T H"]
    sines: Float[Array, "B 1 T H"]

    @classmethod
    def at(cls, positions: Int[Array, "B T"], head_dim: int, base: float) -> RotaryEmbedding:
        """Returns the embedding for heads of width `head_dim`, which must be even."""
        angles = _angles(positions, head_dim, base)[:, None]
        cosines, sines = jnp.cos(angles), jnp.sin(angles)
        return cls(jnp.concatenate([cosines, cosines], axis=-1), jnp.concatenate([-sines, sines], axis=-1))

    def rotate(self, heads: Float[Array, "B N T H"]) -> Float[Array, "B N T H"]:
        """Rotates queries or keys."""
        partners = jnp.roll(heads, heads.shape[-1] // 2, axis=-1)
        return (heads * self.cosines + partners * self.sines).astype(heads.dtype)


def _angles(positions: Int[Array, "*B"], width: int, base: float) -> Float[Array, "*B {width//2}"]:
    """Returns position * base**(-2i / width) for each of the width / 2 pairs i."""
    frequencies = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions.astype(jnp.float32)[..., None] * frequencies
