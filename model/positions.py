"""Where a token stands: sinusoids, which are added to embeddings, and rotations, which turn queries and keys.

B batch, T length, D model width, N heads, H head width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


def sinusoidal_positions(length: int, embed_dim: int, base: float) -> jax.Array:
    """Position encodings [length, embed_dim] (Vaswani et al. 2017, section 3.5): sine at even and cosine at odd
    dimensions.

    Dimension pair i turns with wavelength 2 pi base**(2 i / embed_dim).
    """
    angles = _angles(jnp.arange(length), embed_dim, base)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, embed_dim)


class Rotation(NamedTuple):
    """Turns every head at position t by t times the sinusoids' angles (Su et al. 2021, section 3.2).

    The product of a turned query and a turned key depends on the heads and on how far apart they stand, no matter
    where. Dimension i makes a pair with dimension i + H / 2. cosines, sines: [B, 1, T, H] float32, the sines of the
    first half negative.
    """

    cosines: jax.Array
    sines: jax.Array

    @classmethod
    def at(cls, positions: jax.Array, head_dim: int, base: float) -> Rotation:
        """That of positions [B, T]; a head is `head_dim` wide."""
        angles = _angles(positions, head_dim, base)[:, None]
        cosines, sines = jnp.cos(angles), jnp.sin(angles)
        return cls(jnp.concatenate([cosines, cosines], axis=-1), jnp.concatenate([-sines, sines], axis=-1))

    def turn(self, heads: jax.Array) -> jax.Array:
        """[B, N, T, H] -> the same, turned."""
        partners = jnp.roll(heads, heads.shape[-1] // 2, axis=-1)
        return (heads * self.cosines + partners * self.sines).astype(heads.dtype)


def _angles(positions: jax.Array, width: int, base: float) -> jax.Array:
    """[..., width / 2]: position times base**(-2 i / width) for each pair i."""
    rates = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions.astype(jnp.float32)[..., None] * rates
