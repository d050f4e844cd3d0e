"""What is written by hand for CPUs, against the library's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model.cpu import LayerNorm, Linear


def value_and_gradients(norm, x, weights):
    def summed(norm, x):
        return jnp.sum(norm(x) * weights)

    value, (of_norm, of_x) = nnx.value_and_grad(summed, argnums=(0, 1))(norm, x)
    return norm(x), value, of_x, of_norm["scale"][...], of_norm["bias"][...]


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-5), (jnp.bfloat16, 2e-2)])
def test_layer_norm_and_its_gradients_equal_flax(dtype, tolerance):
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


def test_layer_norm_by_hand():
    """Mean 2, variance 1: (1, 3) becomes (-1, 1)."""
    norm = LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(norm(jnp.array([[1.0, 3.0]])), [[-1.0, 1.0]], rtol=1e-6)


def test_linear_layer_and_its_gradients_equal_flax():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 3, 7)), jnp.float32)
    ours, flax = (kind(7, 5, rngs=nnx.Rngs(0)) for kind in (Linear, nnx.Linear))

    def summed(layer, x):
        return jnp.sum(jnp.square(layer(x)))

    found, expected = (nnx.value_and_grad(summed, argnums=(0, 1))(layer, x) for layer in (ours, flax))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
