"""The implementations for CPUs agree with those of the library."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model.linear import Linear


def test_linear_layer_and_its_gradients_equal_flax():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 3, 7)), jnp.float32)
    layers = (kind(7, 5, rngs=nnx.Rngs(0)) for kind in (Linear, nnx.Linear))

    def summed(layer, x):
        return jnp.sum(jnp.square(layer(x)))

    actual, expected = (nnx.value_and_grad(summed, argnums=(0, 1))(layer, x) for layer in layers)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
