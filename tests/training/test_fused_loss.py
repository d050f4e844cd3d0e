"""The loss without stored logits against optax: values and gradients, for any block sizes and meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lingua_flax.training.kernels.fused_loss
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.options.schema import MeshConfig
from lingua_flax.training.kernels.fused_loss import FusedLogNormalizer, block_sizes
from lingua_flax.training.loss import cross_entropy
from tests.processes import simulated_devices
from tests.training.test_training_step import reference_loss


def batch(rows: int, vocabulary: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    draw = np.random.default_rng(0)
    x, table = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in [(rows, 6, 16), (vocabulary, 16)])
    targets = jnp.asarray(draw.integers(0, vocabulary, (rows, 6))).at[1].set(0)  # some padding, and one row of it
    return x, 2 * table, targets


def check(mesh: MeshConfig, smoothing: float, rows: int, vocabulary: int) -> None:
    x, table, targets = batch(rows, vocabulary)
    log_normalizer = FusedLogNormalizer(make_mesh(mesh), interpret=True)

    def loss(x, table):
        return 0.5 * cross_entropy(x, table, targets, smoothing, log_normalizer=log_normalizer)[0]

    def reference(x, table):
        return 0.5 * reference_loss(x, table, targets, smoothing)

    expected, expected_gradients = jax.jit(jax.value_and_grad(reference, argnums=(0, 1)))(x, table)
    actual, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, table)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, atol=2e-5)


@pytest.mark.parametrize(
    ("outer", "inner", "smoothing"), [(1024, 1024, 0.0), (8, 8, 0.1), (16, 24, 0.0), (40, 16, 0.1)]
)
def test_loss_and_gradients_match_optax_for_any_block_sizes(monkeypatch, outer, inner, smoothing):
    """Blocks that divide 24 positions and 40 pieces, and blocks that extend beyond them."""
    monkeypatch.setattr(lingua_flax.training.kernels.fused_loss, "block_sizes", lambda width, itemsize: (outer, inner))
    check(MeshConfig(data=1), smoothing, rows=4, vocabulary=40)


def test_loss_with_as_many_positions_as_pieces_matches_optax():
    check(MeshConfig(data=1), 0.1, rows=4, vocabulary=24)


def check_on_a_mesh() -> None:
    lingua_flax.training.kernels.fused_loss.block_sizes = lambda width, itemsize: (8, 8)
    check(MeshConfig(data=2, fsdp=2, tensor=2), 0.1, rows=8, vocabulary=40)


def test_sharded_loss_matches_optax(run, tmp_path):
    program = tmp_path / "check.py"
    program.write_text("from tests.training.test_fused_loss import check_on_a_mesh; check_on_a_mesh()")
    result = run(program, env=simulated_devices(8))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("width", "itemsize"), [(64, 2), (512, 2), (768, 2), (1024, 2), (1024, 4), (4096, 4)])
def test_blocks_fit_into_vector_memory(width, itemsize):
    """Both operands and the float32 result are double-buffered, and the logits are stored once.

    A chip has 16 MB, some of which is needed for other values (see test_topology.py).
    """
    outer, inner = block_sizes(width, itemsize)
    assert 2 * (outer + inner) * width * itemsize + 2 * outer * width * 4 + outer * inner * 4 < 14e6
    assert min(outer, inner) >= 128
