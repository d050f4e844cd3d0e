"""The loss without logits against optax: values and gradients, whatever the blocks and the mesh."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import training.fused_loss
from devices.mesh import make_mesh
from options.schema import MeshConfig
from tests.test_devices import EIGHT
from tests.test_training_step import reference_loss
from training.fused_loss import FusedLogNormalizer, block_sizes
from training.loss import cross_entropy


def batch(rows: int, vocabulary: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    draw = np.random.default_rng(0)
    x, table = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in [(rows, 6, 16), (vocabulary, 16)])
    targets = jnp.asarray(draw.integers(0, vocabulary, (rows, 6))).at[1].set(0)  # some padding, and a row of nothing
    return x, 2 * table, targets


def check(mesh: MeshConfig, smoothing: float, rows: int, vocabulary: int) -> None:
    x, table, targets = batch(rows, vocabulary)
    log_normalizer = FusedLogNormalizer(make_mesh(mesh), interpret=True)

    @jax.jit
    def loss(x, table):
        return 0.5 * cross_entropy(x, table, targets, smoothing, log_normalizer=log_normalizer)[0]

    expected, of_expected = jax.value_and_grad(reference_loss, argnums=(0, 1))(x, table, targets, smoothing)
    found, gradients = jax.value_and_grad(loss, argnums=(0, 1))(x, table)
    np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-5)
    for gradient, wanted in zip(gradients, of_expected, strict=True):
        np.testing.assert_allclose(gradient, 0.5 * wanted, atol=2e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("outer", "inner"), [(1024, 1024), (8, 8), (16, 24), (40, 16)])
def test_loss_and_gradients_equal_optax_whatever_the_blocks(monkeypatch, smoothing, outer, inner):
    """Blocks that divide 24 positions and 40 pieces, and blocks that reach beyond their ends."""
    monkeypatch.setattr(training.fused_loss, "block_sizes", lambda width, itemsize: (outer, inner))
    check(MeshConfig(data=1), smoothing, rows=4, vocabulary=40)


def test_as_many_positions_as_pieces():
    check(MeshConfig(data=1), 0.1, rows=4, vocabulary=24)


def check_on_a_mesh() -> None:
    training.fused_loss.block_sizes = lambda width, itemsize: (8, 8)
    check(MeshConfig(data=2, fsdp=2, tensor=2), 0.1, rows=8, vocabulary=40)


def test_shared_out_over_a_mesh(run):
    done = run("-c", "from tests.test_fused_loss import check_on_a_mesh; check_on_a_mesh()", env=os.environ | EIGHT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("width", "itemsize"), [(64, 2), (512, 2), (768, 2), (1024, 2), (1024, 4), (4096, 4)])
def test_blocks_fit_into_a_chip(width, itemsize):
    """Both operands twice, since the next block comes in while one is worked on, the float32 result twice, and the
    logits; a chip has 16 MB, of which what lies between them needs some (see test_topology.py)."""
    outer, inner = block_sizes(width, itemsize)
    assert 2 * (outer + inner) * width * itemsize + 2 * outer * width * 4 + outer * inner * 4 < 14e6
    assert min(outer, inner) >= 128
