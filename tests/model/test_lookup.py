"""Rows of a table, and their gradient in the form for GPUs, against NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.model.lookup import lookup, sums_by_number

TABLE = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), jnp.float32)
NUMBERS = jnp.array([[6, 2, 2], [0, 2, 6]])


@pytest.mark.parametrize(
    ("numbers", "rows"),
    [([3], 5), ([0, 0, 0, 0], 1), ([4, 1, 1, 4, 0, 4, 1], 5), (np.random.default_rng(1).integers(0, 50, 1000), 60)],
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
