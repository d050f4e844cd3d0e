"""The training step and its loss, against optax and against numbers computed by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from lingua_flax.data.batch import Batch, unpacked_batch
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.model.dropout import Dropout
from lingua_flax.model.transformer import Structure, structure
from lingua_flax.options.schema import Config, MeshConfig
from lingua_flax.training.loss import _in_one_pass, _in_two_passes, cross_entropy, number_of_blocks
from lingua_flax.training.state import TrainState, initial_state
from lingua_flax.training.step import batch_digest, make_train_step
from tests.helpers.parameters import random_params

VOCABULARY = 19


def config_of(parts: int) -> Config:
    """Returns a config with AdamW, dropout and a moving average, whose batches have so many parts."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "embed_dim": 12, "num_heads": 2, "mlp_dim": 17}
    return Config.model_validate(
        {
            "data": {"row_length": 8},
            "model": sizes | {"max_length": 8, "dropout_rate": 0.3},
            "optimizer": {"warmup_steps": 4, "peak_lr": 0.01, "name": "adamw", "weight_decay": 0.5, "clip_norm": 0.05},
            "training": {"tokens_per_batch": 48, "seed": 2, "ema_decay": 0.28, "accumulation_steps": parts},
        }
    )


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Six rows with pairs of different lengths, so that parts of a batch hold different numbers of tokens."""
    rng = np.random.default_rng(3)
    source, target = (
        [[*rng.integers(4, VOCABULARY, size=n).tolist(), 1] for n in lengths]
        for lengths in ((5, 2, 7, 1, 4, 3), (7, 1, 2, 6, 3, 1))
    )
    return unpacked_batch(source, target, rows=6, length=8)


CONFIG = config_of(1)


@functools.cache
def network() -> Structure:
    return structure(CONFIG.model, VOCABULARY, VOCABULARY)


@functools.cache
def fresh_params() -> dict:
    return random_params(network())


@functools.cache
def training_step(config: Config) -> jax.stages.Wrapped:
    return make_train_step(network(), config, 12, make_mesh(MeshConfig()))


def first_state(params: dict) -> TrainState:
    """Returns the state before the first step, in buffers that the step may consume."""
    return initial_state(jax.tree.map(jnp.array, params), CONFIG)


def take_steps(batch, count, params=None, config=CONFIG):
    state, metrics = first_state(params or fresh_params()), None
    for _ in range(count):
        state, metrics = training_step(config)(state, batch)
    return jax.device_get((state, metrics))


def with_nan(params: dict) -> dict:
    """Returns a copy of the parameters with a NaN in the embedding of a token that occurs in the batch."""
    table = params["target_embedding"].copy()
    table[5, 0] = np.nan
    return params | {"target_embedding": table}


def largest_difference(a, b):
    differences = jax.tree.map(lambda x, y: np.abs(np.subtract(x, y)).max(), *jax.device_get((a, b)))
    return np.max(jax.tree.leaves(differences))  # NaN if any is


@jax.jit
@jax.value_and_grad
def summed_loss_and_gradient(params, batch, key):
    """Returns the smoothed loss, summed over the target tokens, and its gradient."""
    model = nnx.merge(network().graphdef, params)
    logits, _ = model(jnp.asarray(batch.source), jnp.asarray(batch.target_in), dropout=Dropout(key))
    losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(batch.target_out, 19), 0.1))
    return jnp.sum(losses, where=batch.target_out != 0)


@pytest.mark.parametrize("parts", [1, 3])
def test_training_steps_match_optax(batch, parts):
    """AdamW on clipped gradients of the smoothed loss, with dropout masks drawn from seed, step and part."""

    def is_matrix(params):
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    adamw = optax.adamw(
        lambda count: 0.01 * (count + 1) / 4, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.5, mask=is_matrix
    )
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), adamw)
    update, expected = jax.jit(optimizer.update), fresh_params()
    expected_state = jax.jit(optimizer.init)(expected)
    for step in range(3):
        key = jax.random.fold_in(jax.random.key(2), step)
        keys = [key] if parts == 1 else [jax.random.fold_in(key, part) for part in range(parts)]
        batches = [jax.tree.map(lambda leaf, part=part: np.split(leaf, parts)[part], batch) for part in range(parts)]
        results = [summed_loss_and_gradient(expected, *each) for each in zip(batches, keys, strict=True)]
        loss, gradient = jax.tree.map(lambda *leaves: sum(leaves) / 26, *jax.device_get(results))  # of 26 tokens
        updates, expected_state = update(gradient, expected_state, expected)
        expected = optax.apply_updates(expected, updates)
    state, metrics = take_steps(batch, 3, config=config_of(parts))
    assert largest_difference(state.params, expected) < 2e-5
    assert metrics.tokens == 26
    actual = (metrics.loss, metrics.gradient_norm, metrics.learning_rate)
    np.testing.assert_allclose(actual, (loss, optax.tree.norm(gradient), 0.0075), rtol=1e-5)


def test_non_finite_step_is_skipped_and_counted(batch):
    params = with_nan(fresh_params())
    before = jax.device_get(first_state(params))
    state, metrics = take_steps(batch, 2, params)
    assert state.step == 2
    assert state.skipped == state.skipped_in_a_row == metrics.skipped_in_a_row == 2
    assert not np.isfinite(metrics.loss)
    jax.tree.map(np.testing.assert_array_equal, (state.params, state.optimizer), (before.params, before.optimizer))
    finite, metrics = take_steps(batch, 2)
    assert finite.skipped == metrics.skipped_in_a_row == 0


def test_moving_average_follows_the_parameters_after_each_step(batch):
    """A skipped step does not count as an update of the average."""
    step, params = training_step(CONFIG), fresh_params()
    state, average = first_state(params), params
    for decay in (2 / 11, 3 / 12, 0.28):  # (1 + n) / (10 + n), but at most the configured one
        state, _ = step(state, batch)
        average = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, average, jax.device_get(state.params))
        assert largest_difference(state.ema_params, average) < 1e-6
    assert state.eval_params is state.ema_params
    skipped, _ = take_steps(batch, 2, with_nan(params))
    np.testing.assert_array_equal(skipped.ema_params["encoder_norm"]["scale"], params["encoder_norm"]["scale"])
    copies = [jax.tree.map(jnp.array, params) for _ in range(2)]  # the step consumes its arguments
    recovered, _ = step(skipped._replace(params=copies[0], ema_params=copies[1]), batch)
    expected = jax.tree.map(lambda old, new: 2 / 11 * old + 9 / 11 * new, params, jax.device_get(recovered.params))
    assert largest_difference(recovered.ema_params, expected) < 1e-6  # the first update, although the third step


def murmur(words):
    """Returns MurmurHash3's 32-bit finalizer, computed in Python integers."""
    words = (words ^ (words >> 16)) * 0x85EBCA6B % 2**32
    words = (words ^ (words >> 13)) * 0xC2B2AE35 % 2**32
    return words ^ (words >> 16)


def test_batch_digest_is_two_sums_of_hashes(batch):
    sums = [0, 0]
    for side, (ids, segments) in enumerate(
        ((batch.source, batch.source_segments), (batch.target_out, batch.target_segments))
    ):
        for (row, column), token in np.ndenumerate(ids):
            for lane in (0, 1):
                word = 2 * side + lane
                for coordinate in (row, column, int(token), int(segments[row, column])):
                    word = murmur((word + 0x9E3779B9 + coordinate) % 2**32)
                sums[lane] = (sums[lane] + word) % 2**32
    assert jax.jit(batch_digest)(batch).tolist() == sums


def test_blocks_hold_at_least_the_requested_number_of_positions():
    blocks = {None: 1, 3: 6, 4: 3, 7: 2, 18: 1, 19: 1}
    assert {size: number_of_blocks((3, 6), size) for size in blocks} == blocks


@pytest.mark.parametrize(
    ("dtype", "block_size", "smoothing", "tolerance"),
    [("float32", None, 0.0, 1e-6), ("float32", 4, 0.1, 1e-6), ("bfloat16", 4, 0.1, 0.02)],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_cross_entropy_and_gradients_match_optax(dtype, block_size, smoothing, tolerance, has_bias):
    random = np.random.default_rng(0)
    x, table = (jnp.asarray(random.normal(size=shape), dtype) for shape in [(3, 6, 5), (7, 5)])
    exact, table = jnp.float32(x), jnp.float32(table)
    targets = jnp.array([[4, 5, 1, 0, 0, 0], [6, 1, 0, 0, 0, 0], [2, 3, 4, 5, 3, 1]])

    bias = jnp.float32(random.normal(size=7)) if has_bias else None

    def loss(x, table, bias):
        total, count = cross_entropy(x, table, targets, smoothing, block_size, bias)
        return 0.5 * total, count  # the factor also scales the gradients

    def reference(x, table, bias):
        smoothed = optax.smooth_labels(jax.nn.one_hot(targets, len(table)), smoothing)
        losses = optax.softmax_cross_entropy(
            jnp.einsum("btd,vd->btv", x, table) + (bias if has_bias else 0.0), smoothed
        )
        return 0.5 * jnp.sum(jnp.where(targets != 0, losses, 0.0))

    of = (0, 1, 2)[: 2 + has_bias]
    expected, expected_gradients = jax.jit(jax.value_and_grad(reference, argnums=of))(exact, table, bias)
    (actual, count), gradients = jax.jit(jax.value_and_grad(loss, argnums=of, has_aux=True))(x, table, bias)
    alone, _ = jax.jit(loss)(x, table, bias)  # a separate path: no gradients are computed
    np.testing.assert_allclose([actual, alone], [expected] * 2, rtol=tolerance)
    assert count == 11
    assert [gradient.dtype for gradient in gradients] == [dtype, "float32", "float32"][: len(of)]
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(np.float32(gradient), expected_gradient, rtol=tolerance, atol=tolerance)


def test_online_softmax_of_gpus_matches_two_passes():
    logits = 30.0 * jnp.asarray(np.random.default_rng(0).normal(size=(5, 300)), jnp.float32)
    logits = logits.at[0].set(-3e4).at[1, 7].set(3e4)
    (maximum, total), expected = jax.jit(_in_one_pass)(logits), _in_two_passes(logits)
    np.testing.assert_array_equal(maximum, expected[0])
    np.testing.assert_allclose(total, expected[1], rtol=1e-5)


def test_bfloat16_cross_entropy_sums_table_gradient_in_float32():
    """The gradients of 4,096 positions all have the same direction: a sum in bfloat16 would stop growing at 256."""
    x, targets = jnp.ones((64, 64, 2), jnp.bfloat16), jnp.full((64, 64), 3)
    table_gradient = jax.grad(lambda table: cross_entropy(x, table, targets, block_size=512)[0])
    gradient = jax.jit(table_gradient)(jnp.zeros((4, 2)))
    np.testing.assert_allclose(gradient, 4096 * np.array([[0.25] * 2] * 3 + [[-0.75] * 2]))
