"""Linear layers, lookups of rows and dropout: the implementations for CPUs and GPUs against NumPy and Flax."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from lingua_flax.model.dropout import Dropout
from lingua_flax.model.linear import Linear
from lingua_flax.model.lookup import lookup, sums_by_number
from lingua_flax.model.parameters import linear
from lingua_flax.options.precision import BFLOAT16, BFLOAT16_PRODUCTS

TABLE = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), jnp.float32)
NUMBERS = jnp.array([[6, 2, 2], [0, 2, 6]])


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


@pytest.mark.parametrize(
    ("numbers", "rows"), [([4, 1, 1, 4, 0, 4, 1], 5), (np.random.default_rng(1).integers(0, 50, 1000), 60)]
)
def test_sums_by_number_match_numpy(numbers, rows):
    terms = np.random.default_rng(0).normal(size=(len(numbers), 3))
    expected = np.zeros((rows, 3))
    np.add.at(expected, numbers, terms)
    sums = jax.jit(sums_by_number, static_argnums=2)(jnp.asarray(numbers), jnp.float32(terms), rows)
    np.testing.assert_allclose(sums, expected, atol=1e-5)


def test_gradient_adds_up_over_equal_numbers():
    gradient = jax.grad(lambda table: jnp.sum(lookup(table, NUMBERS) * jnp.arange(1.0, 7.0).reshape(2, 3, 1)))(TABLE)
    np.testing.assert_allclose(gradient, np.outer([4, 0, 10, 0, 0, 0, 7], [1, 1, 1]))
    np.testing.assert_array_equal(lookup(TABLE, NUMBERS), np.asarray(TABLE)[np.asarray(NUMBERS)])


@pytest.mark.parametrize(("platform", "scatters"), [("cpu", True), ("cuda", False)])
def test_only_programs_for_gpus_add_without_a_scatter(platform, scatters):
    """On a GPU, a scatter adds in any order, which makes no difference to integers."""
    gradient = jax.jit(jax.grad(lambda table: jnp.sum(lookup(table, NUMBERS) ** 2)))
    program = gradient.trace(TABLE).lower(lowering_platforms=(platform,)).as_text()
    results = [re.search(r"}\) : .* -> (.*)", rest)[1] for rest in program.split('"stablehlo.scatter"')[1:]]
    assert ("tensor<7x3xf32>" in results) == scatters
    assert ("stablehlo.sort" in program) != scatters


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.999, float(np.nextafter(1, 0))])
def test_share_and_scale_of_kept_elements(rate):
    kept = np.asarray(Dropout(jax.random.key(0))(jnp.ones(10_000), rate))
    assert np.mean(kept > 0) == pytest.approx(1 - rate, abs=0.01)
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-6)


def test_mask_depends_on_key_site_and_position():
    @jax.jit
    def masks(key):
        dropout = Dropout(key)
        return [dropout(jnp.ones((64, 257)), 0.3) for _ in range(2)]

    a, b = jax.device_get(masks(jax.random.key(7)))
    np.testing.assert_array_equal(masks(jax.random.key(7))[0], a)
    assert not np.array_equal(masks(jax.random.key(8))[0], a)
    for one, other in ((a, b), (a[:, 1:], a[:, :-1])):  # sites, and neighbors
        assert ((one == 0) & (other == 0)).mean() == pytest.approx(0.09, abs=0.01)  # independent
