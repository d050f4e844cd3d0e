"""The project's layer norm against Flax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model.layer_norm import LayerNorm


def value_and_gradients(norm, x, weights):
    def summed(norm, x):
        return jnp.sum(norm(x) * weights)

    value, (of_norm, of_x) = nnx.value_and_grad(summed, argnums=(0, 1))(norm, x)
    return norm(x), value, of_x, of_norm["scale"][...], of_norm["bias"][...]


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-5), (jnp.bfloat16, 2e-2)])
def test_equals_flax_with_its_gradients(dtype, tolerance):
    random = np.random.default_rng(0)
    x = jnp.asarray(3 + 2 * random.normal(size=(2, 3, 7)), dtype)
    weights = jnp.asarray(random.normal(size=(2, 3, 7)), jnp.float32)
    ours, flax = (kind(7, dtype=dtype, rngs=nnx.Rngs(0)) for kind in (LayerNorm, nnx.LayerNorm))
    for norm in (ours, flax):
        norm.scale[...] = jnp.linspace(0.5, 1.5, 7)
        norm.bias[...] = jnp.linspace(-1.0, 1.0, 7)
    assert jax.tree.structure(nnx.state(ours)) == jax.tree.structure(nnx.state(flax))
    for found, expected in zip(
        value_and_gradients(ours, x, weights), value_and_gradients(flax, x, weights), strict=True
    ):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(
            np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=tolerance, atol=tolerance
        )


def test_by_hand():
    """Mean 2, variance 1: (1, 3) becomes (-1, 1)."""
    norm = LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(norm(jnp.array([[1.0, 3.0]])), [[-1.0, 1.0]], rtol=1e-6)
