"""The loss and its gradients, against optax and against sums by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lingua_flax.training.loss import _in_one_pass, _in_two_passes, cross_entropy, number_of_blocks


@pytest.mark.parametrize(("block_size", "blocks"), [(None, 1), (3, 6), (4, 3), (7, 2), (18, 1), (19, 1)])
def test_blocks_hold_at_least_the_requested_number_of_positions(block_size, blocks):
    assert number_of_blocks((3, 6), block_size) == blocks


@pytest.mark.parametrize(("block_size", "smoothing"), [(None, 0.0), (None, 0.1), (4, 0.1)])
def test_cross_entropy_and_gradients_match_optax(block_size, smoothing):
    random = np.random.default_rng(0)
    x, table = (random.normal(size=shape).astype(np.float32) for shape in [(3, 6, 5), (7, 5)])
    targets = jnp.array([[4, 5, 1, 0, 0, 0], [6, 1, 0, 0, 0, 0], [2, 3, 4, 5, 3, 1]])

    def loss(x, table):
        total, count = cross_entropy(x, table, targets, smoothing, block_size)
        return 0.5 * total, count  # the factor also scales the gradients

    def reference(x, table):
        smoothed = optax.smooth_labels(jax.nn.one_hot(targets, len(table)), smoothing)
        losses = optax.softmax_cross_entropy(jnp.einsum("btd,vd->btv", x, table), smoothed)
        return 0.5 * jnp.sum(jnp.where(targets != 0, losses, 0.0))

    expected, expected_gradients = jax.jit(jax.value_and_grad(reference, argnums=(0, 1)))(x, table)
    (actual, count), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, table)
    alone, _ = jax.jit(loss)(x, table)  # a separate path: no gradients are computed
    np.testing.assert_allclose([actual, alone], [expected] * 2, rtol=1e-6)
    assert count == 11
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_online_softmax_of_gpus_matches_two_passes():
    logits = 30.0 * jnp.asarray(np.random.default_rng(0).normal(size=(5, 300)), jnp.float32)
    logits = logits.at[0].set(-3e4).at[1, 7].set(3e4)
    (maximum, total), expected = jax.jit(_in_one_pass)(logits), _in_two_passes(logits)
    np.testing.assert_array_equal(maximum, expected[0])
    np.testing.assert_allclose(total, expected[1], rtol=1e-5)


def test_bfloat16_cross_entropy_sums_table_gradient_in_float32():
    """The gradients of 4,096 positions all have the same direction: a sum in bfloat16 would stop growing at 256."""
    x, targets = jnp.ones((64, 64, 2), jnp.bfloat16), jnp.full((64, 64), 3)
    gradient = jax.jit(jax.grad(lambda table: cross_entropy(x, table, targets, block_size=512)[0]))(jnp.zeros((4, 2)))
    np.testing.assert_allclose(gradient, 4096 * np.array([[0.25] * 2] * 3 + [[-0.75] * 2]))


def test_bfloat16_cross_entropy_has_the_gradients_of_optax():
    random = np.random.default_rng(0)
    x, table = (jnp.asarray(random.normal(size=shape), jnp.bfloat16) for shape in ((4, 8, 6), (11, 6)))
    targets = jnp.asarray(random.integers(2, 11, (4, 8)))

    def expected_loss(x, table):
        return optax.softmax_cross_entropy_with_integer_labels(x @ table.T, targets).sum()

    def loss(x, table):
        return cross_entropy(x, table, targets, block_size=16)[0]

    actual = jax.jit(jax.grad(loss, (0, 1)))(x, jnp.float32(table))
    expected = jax.jit(jax.grad(expected_loss, (0, 1)))(jnp.float32(x), jnp.float32(table))
    assert [gradient.dtype for gradient in actual] == [jnp.bfloat16, jnp.float32]
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.float32(ours), theirs, rtol=0.02, atol=0.02)
