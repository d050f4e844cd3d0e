"""The implementations for CPUs agree with those of the library."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from lingua_flax.model.linear import Linear
from lingua_flax.model.parameters import linear
from lingua_flax.options.precision import BFLOAT16, BFLOAT16_PRODUCTS


def test_linear_layer_and_its_gradients_equal_flax():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 3, 7)), jnp.float32)
    layers = (kind(7, 5, rngs=nnx.Rngs(0)) for kind in (Linear, nnx.Linear))

    def summed(layer, x):
        return jnp.sum(jnp.square(layer(x)))

    actual, expected = (nnx.value_and_grad(summed, argnums=(0, 1))(layer, x) for layer in layers)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gradient_of_bias_is_summed_in_float32():
    layer = linear(2, 3, ("embed", "mlp"), bias=True, precision=BFLOAT16, rngs=nnx.Rngs(0))
    gradients = nnx.grad(lambda layer, x: jnp.sum(layer(x), dtype=jnp.float32))(layer, jnp.zeros((4099, 2)))
    np.testing.assert_array_equal(gradients.bias[...], 4099.0)  # bfloat16 would round it to 4096


@pytest.mark.parametrize("shape", [(1, 1, 7), (4, 32, 48)])
def test_products_in_bfloat16_and_their_gradients_equal_products_of_rounded_operands(shape):
    random = np.random.default_rng(0)
    x, gradient = random.normal(size=shape), random.normal(size=(*shape[:-1], 5))
    layer = linear(shape[-1], 5, ("embed", "mlp"), bias=True, precision=BFLOAT16_PRODUCTS, rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(layer)

    @jax.jit
    def forward_and_backward(params, x, gradient):
        y, backward = jax.vjp(lambda params, x: nnx.merge(graphdef, params)(x), params, x)
        return y, *backward(gradient)

    y, param_gradients, x_gradient = forward_and_backward(params, jnp.float32(x), jnp.float32(gradient))
    assert y.dtype == x_gradient.dtype == param_gradients["kernel"][...].dtype == jnp.float32

    def rounded(array):
        return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64).reshape(-1, array.shape[-1])

    kernel = rounded(layer.kernel[...])
    for actual, expected in (
        (y, rounded(x) @ kernel),
        (x_gradient, rounded(gradient) @ kernel.T),
        (param_gradients["kernel"][...], rounded(x).T @ rounded(gradient)),
    ):
        np.testing.assert_allclose(actual, expected.reshape(actual.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(param_gradients["bias"][...], gradient.reshape(-1, 5).sum(0), rtol=1e-5, atol=1e-5)
